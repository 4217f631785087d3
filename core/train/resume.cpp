#include "core/train/resume.h"

#include <torch/version.h>

#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/version.h"
#include "core/train/summary.h"

namespace trireme::train {
namespace {

std::vector<double> to_doubles(const at::Tensor& tensor) {
  const auto host = tensor.to(at::kCPU, at::kDouble).contiguous();
  const auto* values = host.const_data_ptr<double>();
  return {values, values + host.numel()};
}

void restore_scaler(optim::LossScaler& scaler, const checkpoint::TrainRecord& record) {
  if (!scaler.enabled() || !record.loss_scale) return;
  auto state = scaler.state();
  auto* values = state.data_ptr<double>();
  TRIREME_CHECK(static_cast<std::int64_t>(record.loss_scale->size()) == state.numel(), "a loss scale of another shape");
  std::copy(record.loss_scale->begin(), record.loss_scale->end(), values);
  scaler.set_state(state);
}

}  // namespace

void save_standing(const config::RunConfig& config, const std::string& run_dir, const std::string& config_toml,
                   Boosted& run, const Standing& standing) {
  checkpoint::CheckpointContents contents;
  contents.record.progress = standing.at;
  contents.record.seed = config.run.seed;
  if (run.optimizer->scaler().enabled()) contents.record.loss_scale = to_doubles(run.optimizer->scaler().state());
  contents.record.config = config_toml;
  contents.record.versions = {{"trireme", TRIREME_VERSION}, {"libtorch", TORCH_VERSION}};
  const auto& best = standing.best;
  contents.record.extra = {{"best", {{"epoch", best.epoch}, {"accuracy", best.accuracy}, {"loss", best.loss}}}};
  contents.weights = checkpoint::weights_of(run.model->parameters());
  contents.optimizer = run.optimizer->state();
  checkpoint::save_checkpoint(run_dir, contents, config.run.keep_checkpoints);
}

std::string resume(const config::RunConfig& config, const std::string& run_dir, Booster& booster, Boosted& run,
                   Standing& standing) {
  if (config.run.resume.empty()) return "";
  const auto& world = booster.mesh().world();
  std::string folder = config.run.resume;
  if (folder == "auto") {
    const auto mine = world.rank() == 0 ? checkpoint::latest_checkpoint(run_dir, booster.log()) : "";
    folder = gather_text(world.group(), world.device(), mine).front();
    if (folder.empty()) return "";
  }
  // Rank 0 reads every byte against its checksum; the others trust that.
  const checkpoint::Checkpoint stored(folder,
                                      world.rank() == 0 ? checkpoint::Verify::content : checkpoint::Verify::sizes);
  const auto& record = stored.record();
  if (record.seed != config.run.seed)
    throw CheckpointError(
        fmt::format("{}: written with seed {}, this run has {}: the order of the data would differ; set run.seed = {}",
                    folder, record.seed, config.run.seed, record.seed));
  stored.restore_weights(checkpoint::weights_of(run.model->parameters()));
  stored.restore_optimizer(run.optimizer->state());
  restore_scaler(run.optimizer->scaler(), record);
  standing.at = record.progress;
  const auto& best = record.extra.at("best");
  standing.best = {best.at("epoch"), best.at("accuracy"), best.at("loss")};
  run.step = standing.at.global_step;
  return folder;
}

}  // namespace trireme::train
