// The folder of a run: config.toml, metrics.jsonl, summary.json, model/, model-best/, checkpoints/, and, if
// requested, model-merged/, timeline.json, logs/ and tensorboard/. Only rank 0 writes it, but for the logs.
//
// metrics.jsonl has one object per line, with `kind` (step | eval | event) and `time` (Unix seconds); numbers have 17
// digits. Each step appears once: a resumed run drops the lines of the steps that it repeats, but not those of the
// run's starts, which say what time was lost with them.
#pragma once

#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/base/files/append_file.h"
#include "core/base/files/output_folder.h"
#include "core/base/log.h"
#include "core/resume/resume_point.h"
#include "core/resume/run_times.h"

namespace trireme::train {

/// Whether `checkpoint` is dir/checkpoints/NAME.
bool is_checkpoint_of(const std::string& dir, const std::string& checkpoint);

/// The file that --timeline writes into the folder.
inline constexpr const char* kTimelineFile = "timeline.json";
/// The file with what the run's tuning has measured and chosen, if [optimize] asks for one.
inline constexpr const char* kTuningFile = "tuning.json";
/// The folder in it with a log of each rank, if run.rank_logs is set.
inline constexpr const char* kLogs = "logs";
/// The folder in it that TensorBoard reads, if run.tensorboard is set.
inline constexpr const char* kTensorBoard = "tensorboard";

class RunFolder {
 public:
  /// Finds the point to resume from, without the checkpoints that are known to be damaged.
  using FindPoint = std::function<ResumePoint(checkpoint::Damages& known)>;

  /// Rank 0 creates the folder and writes config.toml; other ranks have an inactive object. A folder of an earlier run
  /// is renamed to dir.1, dir.2, ... unless the point to resume from is one of its own checkpoints: then nothing in it
  /// changes before go_on(), or the run there was begun by an earlier start of the same command (restart.h) that left
  /// no checkpoint: then its files are removed. While this object exists, no other run can use the folder; `find_point`
  /// is called when that is so, because a run that still ends may be publishing a checkpoint. @throws ConfigError (the
  /// folder has contents that are not from a run, or another run writes to it), CheckpointError (no space, no
  /// permission)
  RunFolder(const std::string& dir, std::string config_toml, const FindPoint& find_point, bool active);
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;

  [[nodiscard]] const std::string& dir() const { return dir_; }
  /// The contents of config.toml: the resolved configuration. Available on every rank.
  [[nodiscard]] const std::string& config_toml() const { return config_toml_; }
  /// Its notes also say where an earlier run was moved.
  [[nodiscard]] const ResumePoint& resume_point() const { return resume_point_; }
  /// Finds an older point, because `damage` was found in the checkpoint of the present one. Call it before go_on(), on
  /// rank 0. @throws CheckpointError when there is none
  void look_further(const RunSetup& setup, const checkpoint::Damage& damage);
  /// Continues the run at `step`: later checkpoints are set aside, and metrics.jsonl is rewritten without later lines,
  /// without the lines of the test split (they are written at the end of a run) and without a line that a crash
  /// truncated. @throws CheckpointError
  /// `is_evaluated`: whether the checkpoint knows the evaluation at `step`; if not, scores of this step go too.
  void go_on(std::int64_t step, bool is_evaluated);
  /// The same in a run that has gone further, and returns to `step`. Returns what was changed, as lines for the screen.
  std::vector<std::string> go_back(std::int64_t step, bool is_evaluated);
  /// Appends a line to metrics.jsonl and adds the time, on rank 0; see record().
  void metric(nlohmann::json line);
  /// Runs `add` on rank 0, which adds to a file of the folder; `file` names it in the count of warnings. Its
  /// CheckpointError is kept as problem(), and nothing is recorded after it: the other ranks, which do not know it yet,
  /// expect this one in their next collective call.
  void record(const char* file, const std::function<void()>& add);
  /// Why record() has failed, or "". The Trainer ends the run with it, on every rank.
  [[nodiscard]] const std::string& problem() const { return problem_; }
  /// From now on, what cannot be recorded is left out, with one warning for each file; lines that go_on() and
  /// go_back() cannot drop stay, with a warning.
  void bear_errors(const Log& log) { bears_errors_ = log; }
  /// Where the time of the run went so far, over all of its starts. On rank 0.
  [[nodiscard]] const RunTimes& times() const { return times_; }
  /// What the lines that go_on() or go_back() has dropped had taken, and the end of the start before this one.
  struct Dropped {
    double seconds = 0;
    double end = 0;  ///< of the last line, Unix seconds; 0: there was none
  };
  [[nodiscard]] const Dropped& dropped() const { return dropped_; }
  /// The last file of a run. @throws CheckpointError, also with problem()
  void summary(const nlohmann::json& content);

 private:
  void lock();
  void move_earlier_run();
  [[nodiscard]] bool is_ours_without_checkpoint() const;
  void clear_own_start();
  void begin();
  void cut(std::int64_t step, bool is_evaluated, std::vector<std::string>& notes);

  std::string dir_, config_toml_;
  checkpoint::Damages damages_;
  ResumePoint resume_point_;
  std::string moved_;  ///< the note of where an earlier run was moved, or ""
  bool active_;
  std::optional<OutputFolder> lock_;
  std::optional<AppendFile> metrics_;
  RunTimes times_;  ///< of the lines in metrics_, and of those that could not be recorded
  Dropped dropped_;
  std::string problem_;
  std::optional<Log> bears_errors_;
  std::set<std::string> warned_;  ///< the files of which bears_errors_ has warned
};

/// The resolved configuration of a prepared run, as its folder holds it: it works from any working directory.
std::string config_toml_of(const RunSetup& setup);

/// Checks what open_run() would reject, except what needs a checkpoint's data. Changes nothing.
/// @throws ConfigError, CheckpointError
void check_run(const RunSetup& setup);

/// The folder of a prepared run and the point that it resumes from; see find_resume_point(). Call it last, on every
/// rank, when everything else is checked, because it moves an earlier run away.
std::unique_ptr<RunFolder> open_run(const RunSetup& setup);

}  // namespace trireme::train
