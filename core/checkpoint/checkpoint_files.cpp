#include "core/checkpoint/checkpoint_files.h"

#include <fmt/format.h>

#include <filesystem>
#include <regex>

#include "core/base/error.h"
#include "core/base/files/files.h"
#include "core/checkpoint/formats/safetensors.h"
#include "core/checkpoint/sharded_tensors.h"

namespace trireme::checkpoint {
namespace {

/// The file of full tensors of a group in format 1.
std::string full_file(const std::string& group) { return group + ".safetensors"; }

}  // namespace

bool has_group(const Manifest& manifest, const std::string& group) {
  return manifest.format == 1 ? manifest.files.contains(full_file(group)) : manifest.tensors.contains(group);
}

std::set<std::string> files_of(const Manifest& manifest, const std::string& group) {
  std::set<std::string> out;
  if (!has_group(manifest, group)) return out;
  if (manifest.format == 1) return {full_file(group)};
  for (const auto& [name, tensor] : manifest.tensors.at(group))
    for (const auto& slice : tensor.slices) out.insert(slice.file);
  return out;
}

std::set<std::string> needed_files(const Manifest& manifest, Use use) {
  std::set<std::string> out;
  if (use == Use::weights) {
    out = files_of(manifest, evaluated_group(manifest));
    out.insert({kState, kConfig});
  } else {
    for (const auto& [name, digest] : manifest.files)
      if (name != kBest) out.insert(name);  // for those who use them: Checkpoint::verify_best()
  }
  return out;
}

std::set<std::string> files_in_parts(const Manifest& manifest) {
  if (manifest.format == 1) return {};
  std::set<std::string> out{kBest};
  for (const auto& [group, tensors] : manifest.tensors) out.merge(files_of(manifest, group));
  return out;
}

const char* evaluated_group(const Manifest& manifest) { return has_group(manifest, kAverage) ? kAverage : kWeights; }

Manifest verified_manifest(const std::string& folder, Verify how, Use use) {
  namespace fs = std::filesystem;
  std::error_code error;
  if (!fs::is_directory(folder, error)) {
    const bool is_known = fs::exists(folder, error);
    const bool is_absent = !error || error == std::errc::no_such_file_or_directory;
    throw CheckpointError(is_known    ? fmt::format("{}: is a file, not the folder of a checkpoint", folder)
                          : is_absent ? fmt::format("{}: no such checkpoint folder", folder)
                                      : fmt::format("{}: cannot be read: {}", folder, error.message()));
  }
  if (!fs::exists(path_in(folder, kManifest), error) && !error)
    throw CheckpointError(
        fmt::format("{}: no manifest.json in it, so it is not a complete checkpoint{}", folder,
                    use == Use::weights ? "; name a run folder, or a folder in its checkpoints/" : ""));
  auto manifest = read_manifest(folder);
  const auto needs = [&](bool there, const std::string& what) {
    if (!there) throw CheckpointError(fmt::format("{}: lists no {}", path_in(folder, kManifest), what));
  };
  for (const char* file : {kState, kConfig}) needs(manifest.files.contains(file), file);
  for (const std::string group : {kWeights, kOptimizer})
    needs(has_group(manifest, group) || (use == Use::weights && group == kOptimizer), "tensors of the " + group);
  const auto in_parts = how == Verify::record ? files_in_parts(manifest) : std::set<std::string>{};
  for (const auto& name : needed_files(manifest, use)) {
    if (is_elsewhere(folder, manifest, name)) continue;
    const auto file_how = how == Verify::record && !in_parts.contains(name) ? Verify::content : how;
    if (const auto problem = file_problem(path_in(folder, name), manifest.files.at(name), file_how); !problem.empty())
      throw CheckpointError(problem);
  }
  return manifest;
}

std::unique_ptr<WeightsFile> open_group(const std::string& folder, const Manifest& manifest, const std::string& group) {
  if (!has_group(manifest, group)) return nullptr;
  if (manifest.format == 1) return std::make_unique<SafeTensors>(path_in(folder, full_file(group)));
  return std::make_unique<ShardedTensors>(folder, group, manifest);
}

int rank_of_file(const std::string& name) {
  static const std::regex part(R"((weights|optimizer|average)-([0-9]{5,9})-[0-9]{2,}\.safetensors)");
  std::smatch found;
  return std::regex_match(name, found, part) ? std::stoi(found.str(2)) : -1;
}

std::string checkpoint_of_part(const std::string& path) {
  const std::filesystem::path file(path);
  const auto parent = file.parent_path().string(), folder = parent.empty() ? std::string(".") : parent;
  std::error_code none;
  const bool is_part = rank_of_file(file.filename().string()) >= 0;
  return is_part && std::filesystem::is_regular_file(path_in(folder, kManifest), none) ? folder : "";
}

}  // namespace trireme::checkpoint
