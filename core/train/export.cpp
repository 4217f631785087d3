#include "core/train/export.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <utility>

#include "core/checkpoint/safetensors.h"
#include "core/checkpoint/weights.h"

namespace trireme::train {

namespace fs = std::filesystem;

BestModel::BestModel(const std::string& run_dir, std::map<std::string, std::string> texts)
    : dir_((fs::path(run_dir) / kBestModel).string()), texts_(std::move(texts)) {}

void BestModel::save(Booster& booster, Boosted& run) {
  digest_ = checkpoint::save_weights(dir_, run.model->state_dict(), texts_, booster.mesh());
  if (booster.mesh().world().rank() == 0) file_ = (fs::path(dir_) / checkpoint::kModelTensors).string();
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
  auto linked = (fs::path(dir) / checkpoint::kModelTensors).string();
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
  const auto path = (fs::path(dir_) / checkpoint::kModelTensors).string();
  const at::NoGradGuard no_grad;
  auto state = run.model->state_dict();
  std::error_code none;
  const auto size = fs::file_size(path, none);
  std::optional<checkpoint::SafeTensors> stored;
  if (!none && static_cast<std::int64_t>(size) == bytes.item<std::int64_t>()) stored.emplace(path);
  // A file that was written before buffers were saved lacks those of some pipeline stages only.
  const bool has_all = stored && std::all_of(state.begin(), state.end(), [&](const shard::Slice& slice) {
                         return stored->tensors().contains(slice.placement.name);
                       });
  auto readable = at::full({}, has_all ? 1 : 0, options);
  world.group().all_reduce(readable, comm::ReduceOp::min);
  if (readable.item<std::int64_t>() == 0) return false;
  for (auto& [placement, value] : state) value.copy_(stored->read(placement.name, placement));
  run.model->weights_changed();
  return true;
}

}  // namespace trireme::train
