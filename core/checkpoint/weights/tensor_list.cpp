#include "core/checkpoint/weights/tensor_list.h"

#include <c10/core/ScalarType.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "core/base/json_text.h"
#include "core/checkpoint/checkpoint_files.h"
#include "core/checkpoint/formats/safetensors.h"
#include "core/checkpoint/run_checkpoints.h"
#include "core/checkpoint/weights/adapters.h"

namespace trireme::checkpoint {
namespace fs = std::filesystem;

std::int64_t ListedTensor::numel() const { return shard::Placement::whole(name, info.shape).full_numel(); }

std::uint64_t ListedTensor::bytes() const { return static_cast<std::uint64_t>(numel()) * c10::elementSize(info.dtype); }

at::Tensor ListedTensor::read() const { return file->read(name, shard::Placement::whole(name, info.shape)); }

bool names_checkpoint(const std::string& path) {
  std::error_code none;
  const fs::path folder(path);
  if (!fs::is_directory(folder, none)) return false;
  if (fs::exists(folder / kManifest, none) && fs::exists(folder / kState, none)) return true;
  const bool has_tensors = fs::exists(folder / kModelTensors, none) || fs::exists(folder / kModelIndex, none);
  return !has_tensors && !complete_checkpoints(path).empty();
}

TensorList::TensorList(const std::string& path, Groups groups, Verify how) : path_(path) {
  if (names_checkpoint(path))
    open_checkpoint(path, groups, how);
  else
    open_weights(path);
}

void TensorList::open_checkpoint(const std::string& path, Groups groups, Verify how) {
  // A listing shows what a checkpoint without its optimizer's files holds.
  const auto use = groups == Groups::all && how == Verify::content ? Use::resume : Use::weights;
  auto found = find_intact_checkpoint(path, use, how);
  const auto& folder = path_ = std::move(found.folder);
  skipped_ = std::move(found.skipped);
  is_checkpoint_ = true;
  const auto manifest = read_manifest(folder);
  std::set<std::string> files;
  const auto open = [&](const char* group, const std::string& prefix, int number) {
    auto file = open_group(folder, manifest, group);
    if (!file) return;
    files.merge(files_of(manifest, group));
    add(*owned_.emplace_back(std::move(file)), prefix, number);
  };
  if (groups == Groups::weights) {
    open(evaluated_group(manifest), "", 0);
  } else {
    open(kWeights, "", 0);
    open(kAverage, std::string(kAverage) + ": ", 1);
    open(kOptimizer, std::string(kOptimizer) + ": ", 2);
  }
  file_count_ = files.size();
}

void TensorList::open_weights(const std::string& path) {
  part_of_ = checkpoint_of_part(path);
  const auto adapters = part_of_.empty() ? find_adapters_alone(path) : "";
  path_ = !part_of_.empty() ? path : !adapters.empty() ? adapters : find_weights(path);
  if (path_.ends_with(".json")) {
    source_ = std::make_unique<WeightsSource>(path_);
    file_count_ = source_->file_count();
    for (const auto& name : source_->names()) {
      const auto* file = source_->file_of(name);
      tensors_.insert({name, {file, name, file->info(name), 0}});
    }
    const auto index = read_json(path_);
    if (const auto metadata = index.find("metadata"); metadata != index.end() && metadata->is_object())
      for (const auto& [key, value] : metadata->items())
        metadata_[key] = value.is_string() ? value.get<std::string>() : json_text(value);
    return;
  }
  add(*owned_.emplace_back(open_weights_file(path_)), "", 0);
  if (const auto* file = dynamic_cast<const SafeTensors*>(owned_.back().get())) metadata_ = file->metadata();
}

void TensorList::add(const WeightsFile& file, const std::string& prefix, int group) {
  for (const auto& name : file.names()) tensors_.insert({prefix + name, {&file, name, file.info(name), group}});
}

}  // namespace trireme::checkpoint
