// RunRecord: what a run folder says about its run, whether that still trains, has ended or was killed. It reads
// metrics.jsonl and summary.json, and changes nothing.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "core/resume/run_times.h"

namespace trireme::apps {

enum class RunState {
  running,   ///< a process writes to the folder
  finished,  ///< the training is complete
  stopped,   ///< a signal or a limit ended it; the same command goes on with it
  died,      ///< an error or a kill ended it
};
const char* name_of(RunState state);

struct RunRecord {
  std::string dir;
  RunState state = RunState::died;
  std::int64_t step = 0, steps = 0;  ///< the last one, and those of the whole training; 0: not known
  std::string layout{}, plugin{};    ///< "4 = dp 2 x tp 2", "hybrid_parallel"; of the last start
  std::string best_by{};             ///< the metric that decides which weights are the best: "accuracy"
  bool is_fraction = false;          ///< it is shown in percent
  std::optional<double> best{};
  train::RunTimes times{};
};
/// "accuracy 94.1 %", "loss 2.31"; "-" while none is known.
std::string best_text(const RunRecord& run);

/// Called with each line of metrics.jsonl that is an object, in order.
using EachLine = std::function<void(const nlohmann::json& line)>;

/// Reads a run again and again, of which it parses each line once. A start that goes on from an earlier step writes the
/// file anew, which is then read from its begin.
class RunReader {
 public:
  /// `each`: null: nothing is called. @pre is_run(dir)
  explicit RunReader(std::string dir, EachLine each = nullptr);
  /// What the folder says now. @throws CheckpointError when metrics.jsonl cannot be read
  const RunRecord& read();
  /// How often the file was read from its begin.
  [[nodiscard]] int begins() const { return begins_; }

 private:
  void take(const nlohmann::json& line);

  RunRecord run_;
  EachLine each_;
  std::int64_t position_ = 0;  ///< in metrics.jsonl, after the last whole line
  std::uint64_t file_ = 0;     ///< its inode
  int begins_ = 0;
  std::string last_event_{};
};

/// The same once. @throws CheckpointError
RunRecord read_run(const std::string& dir, const EachLine& each = nullptr);
bool is_run(const std::string& dir);
/// The run folders in `dir` and its subfolders, or `dir` itself if it is one; by path.
std::vector<std::string> runs_in(const std::string& dir);
/// The same. @throws ConfigError when there is none
std::vector<std::string> find_runs(const std::string& dir);

}  // namespace trireme::apps
