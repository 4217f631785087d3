// The folder of a run: config.toml, metrics.jsonl, summary.json, model/, model-best/, checkpoints/, and timeline.json
// where one was asked for. Written by rank 0 alone.
//
// metrics.jsonl: one object a line, with `kind` (step | eval | event) and `time` (Unix seconds); numbers keep 17
// digits. A run tells each step once: one that is resumed drops the lines of what it does again.
#pragma once

#include <cstdio>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "core/train/resume.h"

namespace trireme::train {

/// Whether `checkpoint` is dir/checkpoints/NAME.
bool is_checkpoint_of(const std::string& dir, const std::string& checkpoint);

/// What --timeline writes, in the folder.
inline constexpr const char* kTimelineFile = "timeline.json";

class RunFolder {
 public:
  /// Rank 0 makes the folder and writes config.toml; other ranks hold an inactive object. A folder of an earlier run is
  /// renamed to dir.1, dir.2, ... unless start.from is a checkpoint of its own: then nothing in it changes before
  /// go_on(). While this lives, no other run may take the folder. @throws ConfigError (the folder holds what no run
  /// made, or a run writes there now), CheckpointError (no space, no right)
  RunFolder(const std::string& dir, std::string config_toml, ResumePoint resume_point, bool active);
  ~RunFolder();
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;

  [[nodiscard]] const std::string& dir() const { return dir_; }
  /// What config.toml says: the resolved configuration. On every rank.
  [[nodiscard]] const std::string& config_toml() const { return config_toml_; }
  /// With what became of an earlier run among its notes.
  [[nodiscard]] const ResumePoint& resume_point() const { return resume_point_; }
  /// The run stands at `step`: later checkpoints are set aside, and metrics.jsonl is written anew without later lines,
  /// without the test's, which is told at a run's end, and without what a crash left of a line. @throws CheckpointError
  void go_on(std::int64_t step);
  /// Appends a line to metrics.jsonl, with the time put in. @throws CheckpointError
  void metric(nlohmann::json line);
  void summary(const nlohmann::json& content);

 private:
  void lock();
  void move_earlier_run();
  void begin();

  std::string dir_, config_toml_;
  ResumePoint resume_point_;
  bool active_;
  int lock_ = -1;  ///< dir/.lock, held by flock(): the system lets go of it when this process ends, however it ends
  std::FILE* metrics_ = nullptr;
};

/// What open_run() would refuse, as far as that can be told without reading a checkpoint's data. Changes nothing.
/// @throws ConfigError, CheckpointError
void check_run(const Prepared& prepared);

/// The folder of a prepared run, and what it goes on from: see find_start(). To be called last, on every rank, when
/// nothing else can be wrong, because it moves an earlier run away.
std::unique_ptr<RunFolder> open_run(const Prepared& prepared);

}  // namespace trireme::train
