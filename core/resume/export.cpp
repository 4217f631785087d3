#include "core/resume/export.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "core/base/error.h"
#include "core/base/files/files.h"
#include "core/booster/precision.h"
#include "core/checkpoint/formats/safetensors.h"
#include "core/checkpoint/shared_errors.h"
#include "core/checkpoint/weights/adapters.h"
#include "core/checkpoint/weights/model_folder.h"
#include "core/comm/host_values.h"

namespace trireme::train {

namespace fs = std::filesystem;

std::string replace_model(const comm::World& world, const std::string& folder,
                          const std::function<void(const std::string& next)>& write) {
  std::optional<checkpoint::ModelFolder> model;
  std::string problem;
  checkpoint::on_first_rank(world, [&] { model.emplace(folder); });
  write(model ? model->next() : "");
  checkpoint::on_first_rank(world, [&] {
    model->keep_others();
    problem = model->publish();  // the last that can fail
  });
  return problem;
}

checkpoint::ExportFormat export_format(const RunSection& run) {
  checkpoint::ExportFormat format{.shard_mb = run.export_shard_mb};
  if (run.export_dtype) format.dtype = Precision::pure(*run.export_dtype).parameters;
  return format;
}

FileDigest export_weights(const std::string& folder, Boosted& run, const std::map<std::string, std::string>& texts,
                          const std::optional<LoraSection>& lora, const checkpoint::ExportFormat& format) {
  const auto state = run.model->state_dict();
  return lora ? checkpoint::save_adapters(folder, state, run.model->module(), texts, run.booster->mesh(), lora->loaded)
              : checkpoint::save_weights(folder, state, texts, run.booster->mesh(), format);
}

BestModel::BestModel(const std::string& run_dir, std::map<std::string, std::string> texts,
                     std::optional<LoraSection> lora)
    : dir_(path_in(run_dir, kBestModel)), texts_(std::move(texts)), lora_(std::move(lora)) {}

const char* BestModel::file_name() const { return lora_ ? checkpoint::kAdapterTensors : checkpoint::kModelTensors; }

std::string BestModel::save(Boosted& run) {
  const auto& world = run.booster->world();
  FileDigest digest;
  auto problem =
      replace_model(world, dir_, [&](const std::string& next) { digest = export_weights(next, run, texts_, lora_); });
  digest_ = digest;
  if (world.rank() == 0) file_ = path_in(dir_, file_name());
  return problem;
}

void BestModel::take(const comm::World& world, const std::string& file, const FileDigest& digest) {
  checkpoint::on_first_rank(world, [&] {
    digest_ = digest;
    file_.clear();
    std::error_code ignored;
    if (file.empty()) {
      fs::remove_all(dir_, ignored);
      return;
    }
    checkpoint::ModelFolder model(dir_);
    link_file(file, path_in(model.next(), file_name()));
    checkpoint::write_texts(model.next(), texts_);
    model.keep_others();
    if (const auto problem = model.publish(); !problem.empty()) throw CheckpointError(problem);
    file_ = path_in(dir_, file_name());
  });
}

void BestModel::export_to(const comm::World& world, const std::string& dir, const checkpoint::ExportFormat& format,
                          const std::map<std::string, std::string>& texts) const {
  checkpoint::on_first_rank(world, [&] {
    if (file_.empty()) return;
    if (!lora_ && !format.is_plain()) return checkpoint::export_file(file_, dir, format, texts);
    copy_file(file_, path_in(dir, file_name()));  // users may write into an exported file
    checkpoint::write_texts(dir, texts);
  });
}

std::vector<shard::Slice> BestModel::state(Boosted& run) const {
  const auto all = run.model->state_dict();
  return lora_ ? checkpoint::adapter_slices(all, run.model->module(), lora_->loaded) : shard::stored_slices(all);
}

bool BestModel::load(Boosted& run) const {
  const auto& world = run.booster->world();
  const auto bytes = comm::broadcast_value(world.group(), static_cast<std::int64_t>(digest_.bytes));
  const auto path = path_in(dir_, file_name());
  const at::NoGradGuard no_grad;
  auto slices = state(run);
  std::error_code none;
  const auto size = fs::file_size(path, none);
  std::optional<checkpoint::SafeTensors> stored;
  try {
    if (!none && static_cast<std::int64_t>(size) == bytes) stored.emplace(path);
  } catch (const CheckpointError&) {
    // As if it were not there; the others must learn of it.
  }
  // A file that was written before buffers were saved lacks those of some pipeline stages only.
  const bool has_all = stored && std::all_of(slices.begin(), slices.end(), [&](const shard::Slice& slice) {
                         return stored->tensors().contains(slice.placement.name);
                       });
  if (!comm::every_rank(world.group(), has_all)) return false;
  const auto read = [&] {
    for (auto& [placement, value] : slices) value.copy_(stored->read(placement.name, placement));
  };
  checkpoint::on_every_rank(world, read, "the best weights cannot be read");
  run.model->weights_changed();
  return true;
}

}  // namespace trireme::train
