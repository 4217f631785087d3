#include "core/train/export.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>

#include <filesystem>
#include <utility>

#include "core/checkpoint/adapters.h"
#include "core/checkpoint/safetensors.h"

namespace trireme::train {

namespace fs = std::filesystem;

/// What is exported: the tensors with their names in the file.
static std::vector<shard::Slice> exported_slices(Boosted& run, bool adapters) {
  auto state = run.model->state_dict();
  return adapters ? checkpoint::adapter_slices(state, run.model->module()) : state;
}

checkpoint::FileDigest export_weights(const std::string& folder, Booster& booster, Boosted& run,
                                      const std::map<std::string, std::string>& texts, bool adapters) {
  return checkpoint::save_weights(folder, exported_slices(run, adapters), texts, booster.mesh(),
                                  {.file = adapters ? checkpoint::kAdapterTensors : checkpoint::kModelTensors});
}

BestModel::BestModel(const std::string& run_dir, std::map<std::string, std::string> texts, bool adapters)
    : dir_((fs::path(run_dir) / kBestModel).string()), texts_(std::move(texts)), adapters_(adapters) {}

const char* BestModel::file_name() const { return adapters_ ? checkpoint::kAdapterTensors : checkpoint::kModelTensors; }

void BestModel::save(Booster& booster, Boosted& run) {
  digest_ = export_weights(dir_, booster, run, texts_, adapters_);
  if (booster.mesh().world().rank() == 0) file_ = (fs::path(dir_) / file_name()).string();
}

void BestModel::take(Booster& booster, const std::string& file) {
  if (booster.mesh().world().rank() != 0) return;
  if (file.empty()) {
    std::error_code ignored;
    fs::remove_all(dir_, ignored);
    return;
  }
  file_ = link_to(dir_, file);
  digest_ = checkpoint::digest_file(file_);
}

std::string BestModel::link_to(const std::string& dir, const std::string& file) const {
  checkpoint::make_folder(dir);
  auto linked = (fs::path(dir) / file_name()).string();
  checkpoint::link_file(file, linked);
  for (const auto& [name, text] : texts_) checkpoint::write_file((fs::path(dir) / name).string(), text);
  return linked;
}

void BestModel::export_to(const std::string& dir) const {
  if (!file_.empty()) link_to(dir, file_);
}

bool BestModel::load(Booster& booster, Boosted& run) const {
  const auto& world = booster.mesh().world();
  const auto options = at::TensorOptions(at::kLong).device(world.device());
  auto bytes = at::full({}, static_cast<std::int64_t>(digest_.bytes), options);
  world.group().broadcast(bytes, 0);
  const auto path = (fs::path(dir_) / file_name()).string();
  std::error_code none;
  const auto size = fs::file_size(path, none);
  auto readable = at::full({}, !none && static_cast<std::int64_t>(size) == bytes.item<std::int64_t>() ? 1 : 0, options);
  world.group().all_reduce(readable, comm::ReduceOp::min);
  if (readable.item<std::int64_t>() == 0) return false;
  const checkpoint::SafeTensors stored(path);
  const at::NoGradGuard no_grad;
  auto state = exported_slices(run, adapters_);
  for (const auto& slice : state)
    if (!stored.tensors().contains(slice.placement.name)) return false;  // written before buffers were saved
  for (auto& [placement, value] : state) value.copy_(stored.read(placement.name, placement));
  run.model->weights_changed();
  return true;
}

}  // namespace trireme::train
