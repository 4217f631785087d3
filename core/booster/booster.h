// Booster: applies a plugin to model, optimizer and data. This is the interface for C++ programs (docs/cpp.md).
//
//   auto world = trireme::launch();
//   auto plugin = trireme::load_plugin(trireme::plugins::TorchDdpOptions{});
//   trireme::Booster booster(*world, std::move(plugin), {.train = {.global_batch = 64}});
//   auto run = booster.boost({.source = {.model = ...}, .task = tasks::classification(), .data = train_set});
//   for (const auto epoch : run.epochs(3))
//     for (const auto& batch : epoch) {
//       const auto loss = run.train_step(batch).loss;   // all microbatches, reduction, clip, update
//       ...
//     }
// or step by step: run.model->forward(micro), run.criterion(...), run.optimizer->backward(...), step().
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/log.h"
#include "core/booster/boosted.h"
#include "core/booster/epochs.h"
#include "core/booster/plugin.h"
#include "core/booster/task.h"
#include "core/booster/vote.h"
#include "core/booster/weight_average.h"
#include "core/comm/mesh.h"
#include "core/data/loader.h"
#include "core/optim/lr_schedule.h"

namespace torch::optim {
class Optimizer;
}

namespace trireme {

/// Detects how this process was started and starts its world. A process that was started alone is a world of size 1.
std::unique_ptr<comm::World> launch(const comm::WorldOptions& options = {});

struct BoostInputs {
  ModelSource source{};
  /// What the model is trained for: one of tasks/tasks.h, a program's own, or task_of() a criterion.
  std::shared_ptr<const Task> task{};
  /// The training set, read with augment = true; of torch::data by data::from_torch() (core/data/torch_dataset.h).
  std::shared_ptr<data::Dataset> data{};
  /// An AdamW, Adam or SGD of torch::optim over the model's parameters, which has made no steps: the plugin's optimizer
  /// updates as it would, with its groups, in place of BoostOptions::optimizer. Null: these options count.
  torch::optim::Optimizer* optimizer = nullptr;
};

/// What Boosted::execute_pipeline() returns. The loss costs an all-reduce, the outputs memory.
struct ExecuteOptions {
  bool return_loss = true;
  bool return_outputs = false;
};

/// The result of forward and backward of a step, on the device: reading a value waits for it.
struct Executed {
  at::Tensor loss{};  ///< mean over the global batch, the same on every rank, 0-dim; undefined if it is not returned
  /// The model's outputs for this rank's samples, without graph: those of all microbatches along dim 0, with zeros
  /// after the end of those that are shorter in another dim, and logits with all classes. Empty if they are not
  /// returned, and in a pipeline on all ranks but those of the last stage.
  nn::Tensors outputs{};
};

/// The result of one optimizer step, on the device: reading a value waits for it.
struct TrainStep {
  at::Tensor loss;   ///< mean over the global batch, the same on every rank, 0-dim
  at::Tensor votes;  ///< [kVotes]: the numbers of ranks with each vote before it
  StepResult result;
  double lr = 0;
};

class Booster;

/// A model and its optimizer under a plugin, for a program with losses and loaders of its own.
struct ModelAndOptimizer {
  std::unique_ptr<BoostedModel> model;
  std::unique_ptr<BoostedOptimizer> optimizer;
  /// Null without TrainOptions::ema_decay. Boosted::train_step() updates it; a loop of its own calls update().
  std::unique_ptr<WeightAverage> average;
  ShardedLogits sharded_logits;
  /// Optimizer steps done, with those that changed nothing: Progress::global_step of a checkpoint and of a Trainer is
  /// this number. Two others are not: Batch::step is the place, from 0, that a loader gives its batch, and "step" in an
  /// optimizer's state leaves out the steps that changed nothing.
  std::int64_t step = 0;
  Booster* booster = nullptr;  ///< it has boosted the model, and must outlive it
  /// The inputs that the model's loaders read.
  struct Inputs {
    std::vector<std::string> side{};  ///< all ranks need these
    bool is_first = true;             ///< this rank has the first pipeline stage, and needs the others too
    bool all_first = true;            ///< all ranks have
    std::shared_ptr<const data::SampleExchange> exchange{};  ///< null: each rank reads its own samples
  } inputs{};

  ScopeGuard no_sync() { return model->no_sync(); }
  /// While the guard exists, the model has the weights to evaluate and to export: their average, if there is one.
  /// Collective.
  [[nodiscard]] ScopeGuard use_average() { return average ? average->use() : ScopeGuard({}); }
  /// The options that all loaders on this rank share. A training loader also has a global batch.
  [[nodiscard]] data::LoaderOptions loader_options() const;

  /// Writes the model's weights and buffers as DIR/model.safetensors in Hugging Face's layout, and `texts` next to it
  /// by their names ("config.json"). Collective; rank 0 writes. @throws CheckpointError
  void save_model(const std::string& dir, const std::map<std::string, std::string>& texts = {});
  /// Loads weights and buffers from a folder or file of that layout, saved with any parallel layout, by this or another
  /// program; or a model's adapters from a folder of PEFT. The optimizer keeps its state. Collective.
  /// @throws CheckpointError
  void load_model(const std::string& folder_or_file);
  /// Writes the optimizer's state and the loss scale to a .safetensors file, under the names of a checkpoint
  /// ("<parameter>.exp_avg"), or reads such a file, saved with any parallel layout. Collective; rank 0 writes.
  /// @throws CheckpointError
  void save_optimizer(const std::string& file);
  void load_optimizer(const std::string& file);
};

/// A model with its task and data under a plugin, in training or evaluation: all that belongs to one boost(). A Booster
/// may have several, such as a teacher and a student; they do not see each other.
///
/// Without a pipeline, ranks run the same blocks, and a loop may run single microbatches: run.model->forward(micro),
/// run.criterion(...), run.backward(...). execute_pipeline() is for loops in Colossal-AI's form, in every layout.
struct Boosted : ModelAndOptimizer {
  std::shared_ptr<const Task> task;
  Criterion criterion;  ///< the task's loss in training, of outputs as this model makes them
  std::unique_ptr<data::Loader> loader;
  std::unique_ptr<optim::LrSchedule> lr_schedule;

  /// The epochs from where the run stands, with their batches, until this many are over (default: TrainOptions::epochs)
  /// or TrainOptions::max_steps are made.
  [[nodiscard]] Epochs epochs(std::optional<std::int64_t> count = {});
  /// forward_backward(), clipping and update; increments step.
  TrainStep train_step(const data::StepBatch& batch);
  /// Runs forward and backward of every microbatch and reduces the gradients, which are then ready for the step.
  /// Returns this rank's part of the loss over the global batch, 0-dim, on the device; the loss is the sum of the parts
  /// over Booster::loss_group(). `outputs`: if given, receives the model's outputs for each microbatch, without graph;
  /// in a pipeline only on the ranks of the last stage.
  at::Tensor forward_backward(const data::StepBatch& batch, std::vector<nn::Tensors>* outputs = nullptr);
  /// The same for a loop that then calls optimizer->step() and zero_grad(). Collective.
  Executed execute_pipeline(const data::StepBatch& batch, ExecuteOptions what = {});
  /// BoostedModel::gradients() without the loss scale. Collective.
  std::vector<shard::Slice> unscaled_gradients();
  /// For a loop over microbatches without a pipeline: the backward pass of criterion's sum for one of them. Gradients
  /// are reduced unless a guard of no_sync() exists.
  void backward(const at::Tensor& loss_sum, const data::Batch& micro);

  /// A loader for evaluation: this rank's part of the set, without augmentation. Each sample is on exactly one rank.
  [[nodiscard]] std::unique_ptr<data::Loader> evaluation_loader(std::shared_ptr<data::Dataset> data,
                                                                std::int64_t batch) const;
  /// Sets Batch::global_weight of a step that another loader than `loader` made, by the task's weight. Collective over
  /// the data-parallel ranks.
  void set_global_weight(data::StepBatch& batch) const;

  /// Writes everything that the run needs to resume as DIR/checkpoints/step-N, and keeps the newest `keep` checkpoints
  /// there. Collective; each rank writes its slices, and rank 0 the rest, so DIR must be on a file system that all
  /// ranks share. Returns the folder. @throws CheckpointError, as checkpoint::save_checkpoint() does
  std::string save(const std::string& dir, std::int64_t keep = 2);
  /// Loads the newest complete checkpoint of DIR, saved with any parallel layout, into a run that has just been
  /// boosted; epochs() then goes on from there. Returns false if DIR has no checkpoint. Collective.
  /// @throws CheckpointError when the checkpoint has another model, optimizer, sample order or seed
  bool load(const std::string& dir);
};

class Booster {
 public:
  /// `log`: null for one that prints to standard error. Collective. @throws ConfigError for invalid options, before any
  /// communication
  Booster(comm::World& world, std::unique_ptr<Plugin> plugin, BoostOptions options, const Log* log = nullptr);
  Booster(const Booster&) = delete;  // its runs refer to it
  Booster& operator=(const Booster&) = delete;

  /// Collective. @throws ConfigError, DataError, CheckpointError
  Boosted boost(BoostInputs inputs);
  /// For a program with losses and loaders of its own, such as the Accelerator's. Collective. @throws as above
  ModelAndOptimizer boost(ModelSource source);
  /// What this rank tells the others from the next train_step() on, until the next call. Every rank learns it in
  /// TrainStep::votes.
  void vote(Vote vote, bool yes) { reduction_->vote(vote, yes); }

  [[nodiscard]] const BoostOptions& options() const { return options_; }
  [[nodiscard]] comm::World& world() const { return world_; }
  [[nodiscard]] comm::Mesh& mesh() { return *mesh_; }
  [[nodiscard]] const comm::Group& data_group() const { return mesh_->group(&comm::AxisKind::splits_samples); }
  [[nodiscard]] const comm::Group& loss_group() { return mesh_->group(&comm::AxisKind::sums_losses); }
  [[nodiscard]] Plugin& plugin() { return *plugin_; }
  [[nodiscard]] const Log& log() const { return log_; }

 private:
  friend ModelAndOptimizer;
  friend Boosted;
  void connect_sums(nn::Model& model);
  [[nodiscard]] data::LoaderOptions training_options(const Boosted& run) const;
  void boost_model(ModelSource source, const BoostOptions& options, ModelAndOptimizer& run);

  comm::World& world_;
  std::unique_ptr<Plugin> plugin_;
  BoostOptions options_;
  Log log_;
  std::unique_ptr<comm::Mesh> mesh_;
  std::unique_ptr<StepReduction> reduction_;
};

}  // namespace trireme
