// The folder of a run: config.toml, metrics.jsonl, summary.json, model/, checkpoints/. Written by rank 0 alone.
//
// metrics.jsonl: one object a line, with `kind` (step | eval | event) and `time` (Unix seconds); numbers keep 17
// digits.
#pragma once

#include <cstdio>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace trireme::train {

class RunFolder {
 public:
  /// Rank 0 makes the folder and writes config.toml; other ranks hold an inactive object. A folder of an earlier run is
  /// renamed to dir.1, dir.2, ... unless `resume`, which goes on in it. @throws CheckpointError (no space, no right)
  RunFolder(const std::string& dir, const std::string& config_toml, bool resume, bool active);
  ~RunFolder();
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;

  [[nodiscard]] const std::string& dir() const { return dir_; }
  /// The earlier run's new name, or "".
  [[nodiscard]] const std::string& moved_to() const { return moved_to_; }
  /// Appends a line to metrics.jsonl, with the time put in. @throws CheckpointError
  void metric(nlohmann::json line);
  void summary(const nlohmann::json& content);

 private:
  std::string dir_, moved_to_;
  bool active_;
  std::FILE* metrics_ = nullptr;
};

}  // namespace trireme::train
