#include "core/train/run_folder.h"

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/checkpoint/files.h"

namespace trireme::train {
namespace fs = std::filesystem;
namespace {

double unix_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string free_name(const std::string& dir) {
  for (int n = 1;; ++n) {
    const auto name = fmt::format("{}.{}", dir, n);
    if (!fs::exists(name)) return name;
  }
}

}  // namespace

RunFolder::RunFolder(const std::string& dir, const std::string& config_toml, bool resume, bool active)
    : dir_(fs::path(dir).lexically_normal().string()), active_(active) {
  if (!active_) return;
  while (dir_.size() > 1 && dir_.back() == '/') dir_.pop_back();
  std::error_code error;
  const bool earlier = fs::exists(fs::path(dir_) / "metrics.jsonl", error);
  if (earlier && !resume) {
    moved_to_ = free_name(dir_);
    fs::rename(dir_, moved_to_, error);
    if (error)
      throw CheckpointError(
          fmt::format("{}: an earlier run is there and cannot be moved to {}: {}", dir_, moved_to_, error.message()));
  }
  fs::create_directories(dir_, error);
  if (error) throw CheckpointError(fmt::format("{}: cannot make the run folder: {}", dir_, error.message()));
  checkpoint::write_file((fs::path(dir_) / "config.toml").string(), config_toml);
  const auto path = (fs::path(dir_) / "metrics.jsonl").string();
  metrics_ = std::fopen(path.c_str(), "a");
  if (metrics_ == nullptr) throw CheckpointError(fmt::format("{}: cannot be written: {}", path, std::strerror(errno)));
}

RunFolder::~RunFolder() {
  if (metrics_ != nullptr) std::fclose(metrics_);
}

void RunFolder::metric(nlohmann::json line) {
  if (!active_) return;
  line["time"] = unix_seconds();
  const auto text = line.dump() + "\n";
  // A line at a time, so that a reader or a crash never meets half a line.
  if (std::fwrite(text.data(), 1, text.size(), metrics_) != text.size() || std::fflush(metrics_) != 0)
    throw CheckpointError(fmt::format("{}/metrics.jsonl: cannot be written: {}", dir_, std::strerror(errno)));
}

void RunFolder::summary(const nlohmann::json& content) {
  if (active_) checkpoint::write_file((fs::path(dir_) / "summary.json").string(), content.dump(2) + "\n");
}

}  // namespace trireme::train
