// Executor: runs one rank's part of a pipeline. It knows no schedule by name: it follows the program that a schedule is
// lowered to (schedule/program.h), and keeps what each microbatch needs between its actions.
//
// The life of a microbatch in one of this rank's chunks:
//   inputs arrive -> forward -> outputs leave; their graph stays -> their gradient arrives -> backward, or the inputs'
//   part of it -> the inputs' gradient leaves -> the weights' part
// An output's memory is let go of as soon as it is sent: a backward pass needs the graph behind it, not its numbers.
// Between two stages of one rank tensors are handed over.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/data/batch.h"
#include "core/nn/split_backward.h"
#include "pipeline/links.h"
#include "pipeline/schedule/program.h"

namespace trireme::pipeline {

/// A rank's chunks of a model, as the executor sees them.
class Chunks {
 public:
  virtual ~Chunks() = default;
  /// One of this rank's chunks, from 0. `inputs`: of the stage before, or the batch's.
  virtual Tensors forward(int chunk, Tensors inputs, const data::Batch& batch) = 0;
  /// The same to see what shapes come out: as in evaluation, with a graph where one is asked for.
  virtual Tensors probe(int chunk, Tensors inputs, const data::Batch& batch) = 0;
  /// Where the last stage's backward pass begins, 0-dim.
  virtual at::Tensor loss(const Tensors& outputs, const data::Batch& batch) = 0;
  /// Whether a chunk has weights that are trained: then its outputs want gradients, found or not.
  [[nodiscard]] virtual bool trains(int chunk) const = 0;
  /// Around each action that makes gradients of a chunk's weights. `last`: of the step, for this chunk.
  virtual void before_weights(int chunk, bool last) = 0;
  virtual void after_weights(int chunk, bool last) = 0;
};

/// How a pipeline is laid out, the same on every rank.
struct Plan {
  std::string schedule;
  int chunks = 0;  ///< model chunks on each rank; 0: the schedule's own number
};

/// An action of this rank as it went: seconds of the steady clock.
struct Event {
  Action action;
  int stage;
  double begin, end;
};

class Executor {
 public:
  Executor(Plan plan, Links links, Chunks& chunks);

  /// Forward and backward of all microbatches. Collective over the pipeline.
  void train(const std::vector<data::Batch>& micro);
  /// Forward alone: the outputs of each microbatch on the rank of the last stage, none elsewhere. The caller keeps
  /// gradients off. Collective over the pipeline.
  std::vector<Tensors> evaluate(const std::vector<data::Batch>& micro);

  /// The most (chunk, microbatch) pairs that the last train() held at once.
  [[nodiscard]] int peak_live() const { return peak_live_; }
  /// Told of each action that computes, when it has; null: nobody.
  void watch(std::function<void(const Event&)> watcher) { watcher_ = std::move(watcher); }

 private:
  /// A schedule with this rank's part of it.
  struct Ready {
    Schedule schedule;
    Program program;
  };
  /// What a chunk keeps of a microbatch.
  struct Live {
    Incoming incoming;                         ///< inputs on their way
    Tensors inputs;                            ///< ... or handed over, then those that forward took
    Tensors outputs;                           ///< until they leave
    std::vector<torch::autograd::Edge> graph;  ///< behind each output that wants a gradient
    Incoming arriving_gradients;
    Tensors gradients;  ///< of the outputs, handed over; undefined where one wants none
    Tensors outgoing;   ///< the inputs' gradients
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

  /// What goes into a stage, for a microbatch of the step that runs.
  Boundary boundary(int stage, int microbatch) const;
  /// All ranks learn what goes into their stages, and out, unless they know it for such inputs.
  void agree(const std::vector<data::Batch>& micro, bool training);
  std::map<int, Boundary> sample(const data::Batch& like, std::int64_t samples, bool training);
  Live& live(int chunk, int microbatch);

  Plan plan_;
  Links links_;
  Chunks& chunks_;
  std::map<std::pair<int, bool>, Ready> ready_;               ///< by microbatches and whether it trains
  std::map<std::string, std::map<int, BoundaryRule>> rules_;  ///< by the inputs' kind, then by stage

  // Of the step that runs.
  const Schedule* schedule_ = nullptr;
  const std::vector<data::Batch>* micro_ = nullptr;
  std::vector<const std::map<int, BoundaryRule>*> boundaries_;  ///< of each microbatch
  bool training_ = false;
  std::vector<Live> live_;
  std::vector<Tensors> outputs_;
  int live_now_ = 0, peak_live_ = 0;
  std::function<void(const Event&)> watcher_;
};

}  // namespace trireme::pipeline
