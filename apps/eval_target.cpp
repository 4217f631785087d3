#include "apps/eval_target.h"

#include <cstdint>
#include <cstdlib>
#include <filesystem>

#include "core/base/error.h"

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
  return is_file(folder / "model.safetensors") || is_file(folder / "model.safetensors.index.json");
}

/// By the number of its step; empty where there is none.
fs::path newest_checkpoint(const fs::path& run) {
  fs::path newest;
  std::int64_t most = -1;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(run / "checkpoints", none)) {
    const auto name = entry.path().filename().string();
    char* end = nullptr;
    const auto step = name.starts_with("step-") ? std::strtoll(name.c_str() + 5, &end, 10) : -1;
    if (step <= most || *end != '\0') continue;  // ".tmp" and ".aside" are no steps
    most = step;
    newest = entry.path();
  }
  return newest;
}

}  // namespace

EvalTarget find_eval_target(const std::string& path) {
  auto folder = fs::path(path).lexically_normal();
  if (!folder.has_filename()) folder = folder.parent_path();  // a slash at its end
  if (is_checkpoint(folder)) return {path, (folder / "config.toml").string(), true};
  const auto name = folder.filename();
  const auto run = fs::absolute(folder).parent_path();
  if (is_model(folder) && (name == "model" || name == "model-best") && is_file(run / "config.toml"))
    return {path, (folder.has_parent_path() ? folder.parent_path() / "config.toml" : run / "config.toml").string()};
  if (!is_file(folder / "config.toml")) return {path};
  const auto config = (folder / "config.toml").string();
  if (is_model(folder / "model") || is_model(folder)) return {path, config};
  const auto newest = newest_checkpoint(folder);
  if (newest.empty())
    throw CheckpointError(
        fmt::format("{}: this run has neither a model nor a checkpoint yet; there is nothing to evaluate", path));
  return {newest.string(), (newest / "config.toml").string(), true};
}

}  // namespace trireme::apps
