// Booster: puts model, optimizer and data under a plugin. The face that a C++ program uses (docs/cpp.md).
//
//   auto world = trireme::launch();
//   trireme::Booster booster(*world, trireme::load_plugin("torch_ddp"), {.train = {.global_batch = 64}});
//   auto run = booster.boost({.source = {.model = ...}, .criterion = ..., .data = train_set});
//   for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
//     run.loader->start_epoch(epoch);
//     while (auto batch = run.loader->next()) {
//       const auto loss = booster.train_step(run, *batch);   // all microbatches, reduction, clip, update
//       ...
//     }
//   }
// or, with the pieces in hand: run.model->forward(micro), run.criterion(...), run.optimizer->backward(...), step().
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "core/base/log.h"
#include "core/booster/handles.h"
#include "core/booster/plugin.h"
#include "core/comm/mesh.h"
#include "core/data/loader.h"
#include "core/optim/lr_schedule.h"

namespace trireme {

/// Detects how this process was started and brings its world up. One process alone is a world of one.
std::unique_ptr<comm::World> launch(const comm::WorldOptions& options = {});

struct BoostInputs {
  ModelSource source{};
  Criterion criterion{};
  std::shared_ptr<data::Dataset> data{};  ///< to train on; read with augment = true
};

struct Boosted {
  std::unique_ptr<BoostedModel> model;
  std::unique_ptr<BoostedOptimizer> optimizer;
  Criterion criterion;
  std::unique_ptr<data::Loader> loader;
  std::unique_ptr<optim::LrSchedule> lr_schedule;
  std::int64_t step = 0;  ///< optimizer steps taken so far
};

/// One optimizer step, told on the device: reading a value waits for it.
struct TrainStep {
  at::Tensor loss;  ///< mean over the global batch, the same on every rank, 0-dim
  StepResult result;
  double lr = 0;
};

class Booster {
 public:
  /// Collective. @throws ConfigError for options that break a rule, before any communication
  Booster(comm::World& world, std::unique_ptr<Plugin> plugin, BoostOptions options);

  /// Collective. @throws ConfigError, DataError, CheckpointError
  Boosted boost(BoostInputs inputs);
  /// Forward and backward of every microbatch, and the reduction: gradients stand as the step will take them. Returns
  /// this rank's part of the loss over the global batch, 0-dim, on the device: parts add up over loss_group().
  /// `outputs`: if given, gets what the model makes of each microbatch, without graph; in a pipeline on the ranks of
  /// its last stage alone.
  at::Tensor forward_backward(Boosted& run, const data::StepBatch& batch, std::vector<nn::Tensors>* outputs = nullptr);
  /// forward_backward(), clip and update; run.step goes up by one.
  TrainStep train_step(Boosted& run, const data::StepBatch& batch);
  /// A loader for evaluation: this rank's part of the set, each sample once over all ranks, read with augment = false.
  std::unique_ptr<data::Loader> evaluation_loader(std::shared_ptr<data::Dataset> data, std::int64_t batch) const;

  /// Writes all that run needs to go on as DIR/checkpoints/step-N, and keeps the newest `keep` there. Collective; rank
  /// 0 writes. Returns the folder. @throws CheckpointError, as checkpoint::save_checkpoint() does
  std::string save(Boosted& run, const std::string& dir, std::int64_t keep = 2);
  /// Takes up the newest whole checkpoint of DIR, of any layout, in a run that has just been boosted; run.step then
  /// counts its steps, and the loop goes on at run.loader->start_epoch(run.step / N, run.step % N), N =
  /// steps_per_epoch(). False: DIR has none. Collective. @throws CheckpointError when it is of another model,
  /// optimizer, order of samples or seed
  bool load(Boosted& run, const std::string& dir);

  [[nodiscard]] const BoostOptions& options() const { return options_; }
  [[nodiscard]] comm::Mesh& mesh() { return *mesh_; }
  [[nodiscard]] const comm::Group& data_group() { return mesh_->group(plugin_->data_axes()); }
  [[nodiscard]] const comm::Group& loss_group() { return mesh_->group(plugin_->loss_axes()); }
  [[nodiscard]] Plugin& plugin() { return *plugin_; }
  [[nodiscard]] const Log& log() const { return log_; }

 private:
  /// What loaders of this rank have in common.
  [[nodiscard]] data::LoaderOptions loader_options() const;
  static at::Tensor forward_backward_by_pieces(Boosted& run, const data::StepBatch& batch,
                                               std::vector<nn::Tensors>* outputs);
  comm::World& world_;
  std::unique_ptr<Plugin> plugin_;
  BoostOptions options_;
  Log log_;
  std::unique_ptr<comm::Mesh> mesh_;
  bool all_read_inputs_ = true;  ///< every rank, not the first stage of a pipeline alone
};

}  // namespace trireme
