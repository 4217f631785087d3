// Booster: applies a plugin to model, optimizer and data. This is the interface for C++ programs (docs/cpp.md).
//
//   auto world = trireme::launch();
//   trireme::Booster booster(*world, trireme::load_plugin("torch_ddp"), {.train = {.global_batch = 64}});
//   auto run = booster.boost({.source = {.model = ...}, .task = tasks::classification(), .data = train_set});
//   for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
//     run.loader->start_epoch(epoch);
//     while (auto batch = run.loader->next()) {
//       const auto loss = booster.train_step(run, *batch);   // all microbatches, reduction, clip, update
//       ...
//     }
//   }
// or step by step: run.model->forward(micro), run.criterion(...), run.optimizer->backward(...), step().
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/base/log.h"
#include "core/booster/handles.h"
#include "core/booster/plugin.h"
#include "core/booster/task.h"
#include "core/comm/mesh.h"
#include "core/data/loader.h"
#include "core/optim/lr_schedule.h"

namespace trireme {

/// Detects how this process was started and starts its world. A process that was started alone is a world of size 1.
std::unique_ptr<comm::World> launch(const comm::WorldOptions& options = {});

struct BoostInputs {
  ModelSource source{};
  /// What the model is trained for: one of tasks/tasks.h, a program's own, or task_of() a criterion.
  std::shared_ptr<const Task> task{};
  std::shared_ptr<data::Dataset> data{};  ///< the training set; read with augment = true
};

struct Boosted {
  std::unique_ptr<BoostedModel> model;
  std::unique_ptr<BoostedOptimizer> optimizer;
  std::shared_ptr<const Task> task;
  Criterion criterion;  ///< the task's loss in training, of outputs as this model makes them
  std::unique_ptr<data::Loader> loader;
  std::unique_ptr<optim::LrSchedule> lr_schedule;
  std::int64_t step = 0;  ///< optimizer steps taken so far
};

/// The result of one optimizer step, on the device: reading a value waits for it.
struct TrainStep {
  at::Tensor loss;  ///< mean over the global batch, the same on every rank, 0-dim
  StepResult result;
  double lr = 0;
};

class Booster {
 public:
  /// Collective. @throws ConfigError for invalid options, before any communication
  Booster(comm::World& world, std::unique_ptr<Plugin> plugin, BoostOptions options);

  /// Collective. @throws ConfigError, DataError, CheckpointError
  Boosted boost(BoostInputs inputs);
  /// Runs forward and backward of every microbatch and reduces the gradients, which are then ready for the step.
  /// Returns this rank's part of the loss over the global batch, 0-dim, on the device; the loss is the sum of the parts
  /// over loss_group(). `outputs`: if given, receives the model's outputs for each microbatch, without graph; in a
  /// pipeline only on the ranks of the last stage.
  at::Tensor forward_backward(Boosted& run, const data::StepBatch& batch, std::vector<nn::Tensors>* outputs = nullptr);
  /// forward_backward(), clipping and update; increments run.step.
  TrainStep train_step(Boosted& run, const data::StepBatch& batch);
  /// Sets Batch::global_weight of a step that another loader than run.loader made, by the task's weight. Collective
  /// over the data-parallel ranks.
  void set_global_weight(const Boosted& run, data::StepBatch& step);
  /// A loader for evaluation of a boosted model: this rank's part of the set, without augmentation. Each sample is on
  /// exactly one rank.
  std::unique_ptr<data::Loader> evaluation_loader(std::shared_ptr<data::Dataset> data, std::int64_t batch) const;

  /// Writes everything that the run needs to resume as DIR/checkpoints/step-N, and keeps the newest `keep` checkpoints
  /// there. Collective; rank 0 writes. Returns the folder. @throws CheckpointError, as checkpoint::save_checkpoint()
  /// does
  std::string save(Boosted& run, const std::string& dir, std::int64_t keep = 2);
  /// Loads the newest complete checkpoint of DIR, saved with any parallel layout, into a run that has just been
  /// boosted. run.step is then the checkpoint's step count; continue with run.loader->start_epoch(run.step / N,
  /// run.step % N), N = steps_per_epoch(). Returns false if DIR has no checkpoint. Collective. @throws CheckpointError
  /// when the checkpoint has another model, optimizer, sample order or seed
  bool load(Boosted& run, const std::string& dir);

  [[nodiscard]] const BoostOptions& options() const { return options_; }
  [[nodiscard]] comm::Mesh& mesh() { return *mesh_; }
  [[nodiscard]] const comm::Group& data_group() { return mesh_->group(plugin_->data_axes()); }
  [[nodiscard]] const comm::Group& loss_group() { return mesh_->group(plugin_->loss_axes()); }
  [[nodiscard]] Plugin& plugin() { return *plugin_; }
  [[nodiscard]] const Log& log() const { return log_; }

 private:
  void synchronise_norms(nn::Model& model);
  /// The options that all loaders of this rank share.
  [[nodiscard]] data::LoaderOptions loader_options() const;
  static at::Tensor forward_backward_by_pieces(Boosted& run, const data::StepBatch& batch,
                                               std::vector<nn::Tensors>* outputs);
  comm::World& world_;
  std::unique_ptr<Plugin> plugin_;
  BoostOptions options_;
  Log log_;
  std::unique_ptr<comm::Mesh> mesh_;
  std::vector<std::string> side_inputs_;  ///< of all boosted models
  bool all_read_inputs_ = true;           ///< on every rank, not only on those of the first pipeline stage
};

}  // namespace trireme
