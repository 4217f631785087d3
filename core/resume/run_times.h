// RunTimes: where the wall time of a run went, over all of its starts, by the lines of its metrics.jsonl. The share of
// the training is the run's goodput (the word of Google's "ML productivity goodput", 2024).
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

namespace trireme::train {

/// The event of each start, which stays in metrics.jsonl whatever step a later start goes on from: start_up_s; idle_s
/// since the end of the start before it, and lost_s, what this one has dropped (both 0 in a new run).
inline constexpr const char* kStartEvent = "start";

/// In seconds, on rank 0.
struct RunTimes {
  double training = 0;    ///< steps that are part of the result, without their waits for data
  double data = 0;        ///< the waits of these steps for data
  double start_up = 0;    ///< of every start, from the begin of the process or its set-up to the first step
  double evaluation = 0;  ///< of the validation and test splits
  double saving = 0;      ///< checkpoints, as far as the training waited for them
  double lost = 0;        ///< steps, evaluations and saves that a later start or a rollback has undone
  double idle = 0;        ///< between the last line of a start and the begin of the next one
  double begin = 0;       ///< of the first start, Unix seconds; 0: no line is known
  double end = 0;         ///< of the last line, Unix seconds
  int starts = 0;

  /// Counts a line of metrics.jsonl. Lines of a kind that takes no time only move the end.
  void add(const nlohmann::json& line);
  [[nodiscard]] double wall() const { return end - begin; }
  /// What none of the numbers above has: the export of weights, the best weights, output.
  [[nodiscard]] double other() const;
  /// training / wall(), from 0 to 1.
  [[nodiscard]] double goodput() const { return wall() > 0 ? training / wall() : 0; }
  /// {"training", seconds}, ... {"other", seconds}: all parts of wall(), in the order in which they are shown.
  [[nodiscard]] std::vector<std::pair<const char*, double>> parts() const;
  /// "87.2 % of 0:00:46 trained; start-up 4.1 %, evaluation 8.0 %": parts below 0.05 % are left out. "" without lines.
  [[nodiscard]] std::string text() const;
};

/// What is lost with a line that is dropped from metrics.jsonl, in seconds.
double lost_with(const nlohmann::json& line);

nlohmann::json to_json(const RunTimes& times);

}  // namespace trireme::train
