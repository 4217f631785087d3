// Executor: runs one rank's part of a pipeline. It knows no schedule by name: it follows the program to which a
// schedule is lowered (core/pipeline/schedule.h), and stores what each microbatch needs between its actions.
//
// A microbatch passes through one of this rank's chunks as follows:
//   receive the inputs -> forward -> send the outputs; their graph is kept -> receive the outputs' gradients
//   -> backward, or only its input part -> send the inputs' gradients -> the weights' part
// The memory of an output is freed as soon as it is sent: the backward pass needs its graph, not its values. Tensors
// between two stages of one rank are passed directly.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/data/batch.h"
#include "core/nn/autograd/split_backward.h"
#include "core/pipeline/schedule.h"
#include "core/pipeline/schedules.h"
#include "pipeline/links.h"

namespace trireme::pipeline {

/// This rank's chunks of a model.
class Chunks {
 public:
  virtual ~Chunks() = default;
  /// Runs one of this rank's chunks (from 0). `inputs`: the outputs of the stage before; none for the first stage,
  /// which takes the batch's.
  virtual Tensors forward(int chunk, Tensors inputs, const data::Batch& batch) = 0;
  /// The same to find the shapes of the outputs: as in evaluation, with a graph if gradients are enabled.
  virtual Tensors probe(int chunk, Tensors inputs, const data::Batch& batch) = 0;
  /// The loss from which the backward pass of the last stage starts, 0-dim.
  virtual at::Tensor loss(const Tensors& outputs, const data::Batch& batch) = 0;
  /// Whether a chunk has trained weights. Then its outputs want gradients, even if the example's graph needs none.
  [[nodiscard]] virtual bool trains(int chunk) const = 0;
  /// Called before and after each action that computes gradients of a chunk's weights. `last`: the last one of the step
  /// for this chunk.
  virtual void before_weights(int chunk, bool last) = 0;
  virtual void after_weights(int chunk, bool last) = 0;
};

/// The times of one action of this rank, in seconds of the steady clock.
struct Event {
  Action action;
  int stage;
  double begin, end;
};

class Executor {
 public:
  Executor(Plan plan, Links links, Chunks& chunks);

  /// Runs forward and backward for all microbatches. Collective over the pipeline.
  void train(const std::vector<data::Batch>& micro);
  /// Runs forward only. Returns the outputs of each microbatch on the rank of the last stage, nothing on the others.
  /// The caller disables gradients. Collective over the pipeline.
  std::vector<Tensors> evaluate(const std::vector<data::Batch>& micro);

  /// The maximum number of (chunk, microbatch) pairs that the last train() held at once.
  [[nodiscard]] int peak_live() const { return peak_live_; }
  /// Sets a callback for each completed compute action; null: none.
  void watch(std::function<void(const Event&)> watcher) { watcher_ = std::move(watcher); }

 private:
  /// A schedule, and this rank's program of it.
  struct Ready {
    Schedule schedule;
    Program program;
  };
  /// What a chunk stores for a microbatch.
  struct Live {
    Incoming incoming;                         ///< posted receive of the inputs
    Tensors inputs;                            ///< the received or local inputs, then those that forward used
    Tensors outputs;                           ///< until they are sent
    std::vector<torch::autograd::Edge> graph;  ///< gradient edge of each output that wants a gradient
    Incoming incoming_gradients;
    Tensors gradients;  ///< of the outputs, from a local stage; undefined for outputs that want none
    Tensors outgoing;   ///< gradients of the inputs
    std::optional<nn::SplitBackward> split;
  };

  const Ready& ready(int microbatches, bool training);
  void run(const Ready& of, const std::vector<data::Batch>& micro, bool training);
  void compute(const Action& action);
  void await(const Action& action);
  void forward(const Action& action);
  void backward(const Action& action);
  void weights(const Action& action);
  void forward_to_local_stage(const Action& action, int target);
  void send(const Instruction& message);
  void receive(const Instruction& message);
  Tensors inputs_of(const Action& action, int stage);
  static std::vector<nn::SplitBackward::Root> roots_of(Live& live);

  /// The boundary before a stage, for a microbatch of the current step.
  Boundary boundary(int stage, int microbatch) const;
  /// Makes all ranks agree on the boundaries of their stages, unless they already have for inputs of this kind.
  void agree(const std::vector<data::Batch>& micro, bool training);
  std::map<int, Boundary> sample(const data::Batch& like, std::int64_t samples, bool training);
  Live& live(int chunk, int microbatch);

  Plan plan_;
  Links links_;
  Chunks& chunks_;
  std::map<std::pair<int, bool>, Ready> ready_;  ///< by (number of microbatches, whether it trains)
  /// By kind of the inputs, then by stage. When there are too many, all are dropped, on every rank in the same step.
  std::map<std::string, std::map<int, BoundaryRule>> rules_;

  // State of the current step.
  const Schedule* schedule_ = nullptr;
  const std::vector<data::Batch>* micro_ = nullptr;
  std::vector<const std::map<int, BoundaryRule>*> boundaries_;  ///< by microbatch
  bool training_ = false;
  std::vector<Live> live_;
  std::vector<Tensors> outputs_;
  int live_now_ = 0, peak_live_ = 0;
  std::function<void(const Event&)> watcher_;
};

}  // namespace trireme::pipeline
