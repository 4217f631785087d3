#include "core/checkpoint/weights/weights_source.h"

#include <fmt/ranges.h>

#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/files/files.h"
#include "core/base/json_parse.h"
#include "core/base/json_text.h"
#include "core/base/text.h"
#include "core/checkpoint/checkpoint_files.h"
#include "core/checkpoint/formats/safetensors.h"
#include "core/checkpoint/formats/state_dict.h"
#include "core/checkpoint/train_state.h"
#include "core/checkpoint/weights/weights.h"

namespace trireme::checkpoint {
namespace {

namespace fs = std::filesystem;

/// In the order of preference.
constexpr std::array kWeightFiles{kModelTensors, kModelIndex, "pytorch_model.bin", "pytorch_model.bin.index.json"};

/// The first file of the folder with weights under a name of its own; "" if there is none.
std::string other_weights(const std::string& folder) {
  for (const auto& name : names_in(folder))
    for (const char* extension : {".safetensors", ".pth", ".pt", ".bin"})
      if (fs::path(name).extension() == extension) return path_in(folder, name);
  return "";
}

}  // namespace

std::unique_ptr<WeightsFile> open_weights_file(const std::string& path) {
  if (is_torch_file(path)) return std::make_unique<StateDict>(path);
  return std::make_unique<SafeTensors>(path);
}

nlohmann::json read_json(const std::string& path) {
  try {
    return parse_json(read_file(path));
  } catch (const nlohmann::json::exception& error) {
    throw CheckpointError(fmt::format("{}: {}", path, json_problem(error)));
  }
}

std::string find_weights(const std::string& folder_or_file) {
  std::error_code ignored;
  const fs::path path(folder_or_file);
  if (fs::is_regular_file(path, ignored)) {
    if (const auto folder = checkpoint_of_part(folder_or_file); !folder.empty())
      throw CheckpointError(
          fmt::format("{}: one rank's part of the checkpoint {}, with slices of the tensors; name that folder",
                      folder_or_file, folder));
    return folder_or_file;
  }
  if (!fs::is_directory(path, ignored))
    throw CheckpointError(fmt::format("{}: no such file or folder to load weights from", folder_or_file));
  for (const auto& folder : {path, path / "model"})
    for (const char* name : kWeightFiles)
      if (fs::is_regular_file(folder / name, ignored)) return (folder / name).string();
  if (fs::exists(path / "state.json", ignored) && fs::exists(path / kManifest, ignored))  // a checkpoint
    return (path / kManifest).string();
  if (fs::is_directory(path / "checkpoints", ignored))
    throw CheckpointError(fmt::format(
        "{0}: this run has no model yet; name one of its checkpoints, {0}/checkpoints/step-N", folder_or_file));
  const auto other = other_weights(folder_or_file);
  throw CheckpointError(fmt::format("{}: holds none of {}, nor a model folder with one{}", folder_or_file,
                                    fmt::join(kWeightFiles, ", "),
                                    other.empty() ? "" : fmt::format("; to load one file, name it: {}", other)));
}

WeightsSource::WeightsSource(const std::string& path) {
  const fs::path file(path);
  if (file.filename() == kManifest) {
    files_.push_back(open_checkpoint_weights(file.parent_path().string()));
  } else if (path.ends_with(".json")) {
    open_shards(path);
    return;
  } else {
    files_.push_back(open_weights_file(path));
  }
  for (const auto& name : files_[0]->names()) where_[name] = files_[0].get();
}

void WeightsSource::open_shards(const std::string& path) {
  const auto index = read_json(path);
  const auto map = index.is_object() ? index.find("weight_map") : index.end();
  if (!index.is_object() || map == index.end() || !map->is_object())
    throw CheckpointError(fmt::format("{}: no \"weight_map\": not an index of weights", path));
  std::map<std::string, const WeightsFile*> opened;
  for (const auto& [name, file] : map->items()) {
    const auto file_name = file.is_string() ? file.get<std::string>() : "";
    if (file_name.empty() || file_name.find('/') != std::string::npos)
      throw CheckpointError(fmt::format("{}: \"{}\" is not a file beside the index", path, name));
    auto& shard = opened[file_name];
    if (shard == nullptr) {
      files_.push_back(open_weights_file((fs::path(path).parent_path() / file_name).string()));
      shard = files_.back().get();
    }
    static_cast<void>(shard->info(name));  // throws if the index lists a tensor that the file lacks
    where_[name] = shard;
  }
}

const WeightsFile* WeightsSource::file_of(const std::string& name) const {
  const auto found = where_.find(name);
  return found == where_.end() ? nullptr : found->second;
}

std::vector<std::string> WeightsSource::names() const { return text::keys_of(where_); }

}  // namespace trireme::checkpoint
