#include "apps/eval_target.h"

#include <fmt/format.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/json_parse.h"
#include "core/checkpoint/checkpoint_folders.h"

namespace trireme::apps {
namespace {

namespace fs = std::filesystem;

bool is_file(const fs::path& path) {
  std::error_code none;
  return fs::is_regular_file(path, none);
}

bool is_checkpoint(const fs::path& folder) {
  return is_file(folder / "manifest.json") && is_file(folder / "config.toml");
}

bool is_model(const fs::path& folder) {
  return is_file(folder / "model.safetensors") || is_file(folder / "model.safetensors.index.json") ||
         is_file(folder / "adapter_model.safetensors");
}

/// The step of the weights in RUN/model; the largest integer if RUN has no record of it.
std::int64_t exported_step(const fs::path& run) {
  std::ifstream file(run / "summary.json");
  const auto summary = parse_json_or_null(std::string{std::istreambuf_iterator<char>(file), {}});
  if (!summary.is_object() || !summary.contains("steps") || !summary["steps"].is_number_integer())
    return std::numeric_limits<std::int64_t>::max();
  return summary["steps"].get<std::int64_t>();
}

}  // namespace

EvalTarget find_eval_target(const std::string& path) {
  if (path.empty()) throw ConfigError("the path of a run or of weights is empty; is a variable of the shell unset?");
  auto folder = fs::path(path).lexically_normal();
  const bool is_one_file = is_file(folder);                                  // of weights, in one of the folders below
  if (is_one_file || !folder.has_filename()) folder = folder.parent_path();  // else a trailing slash
  if (folder.empty()) folder = ".";
  if (is_checkpoint(folder)) return {path, (folder / "config.toml").string(), !is_one_file};
  auto full = fs::absolute(folder).lexically_normal();
  if (!full.has_filename()) full = full.parent_path();
  const auto name = full.filename(), run = full.parent_path();
  if (is_model(folder) && (name == "model" || name == "model-best" || name == "model-merged") &&
      is_file(run / "config.toml"))
    return {path, (folder.has_parent_path() ? folder.parent_path() / "config.toml" : run / "config.toml").string()};
  if (is_one_file) return {path};
  if (!is_file(folder / "config.toml")) return {path};
  const auto config = (folder / "config.toml").string();
  const auto checkpoints = checkpoint::complete_checkpoints(folder.string());
  const auto newest = checkpoints.empty() ? -1 : checkpoint::step_of_folder(checkpoints.front());
  // After a run is resumed past its end, RUN/model is outdated until the run ends again.
  const bool exported = is_model(folder / "model") && exported_step(folder) >= newest;
  if (exported || is_model(folder)) return {path, config};
  if (checkpoints.empty())
    throw CheckpointError(
        fmt::format("{}: this run has neither a model nor a checkpoint yet; there is nothing to evaluate", path));
  return {checkpoints.front(), checkpoints.front() + "/config.toml", true};
}

}  // namespace trireme::apps
