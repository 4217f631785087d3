// What the user reads of a run of ranks: their outputs, and the errors of ranks and of the run, each of them once. Owns
// the folder of the ranks' flight records (core/comm/flight), of which it makes the one table when a rank has died or
// an operation has failed.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdio>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "apps/launcher/rank_output.h"
#include "apps/launcher/run_of_ranks.h"
#include "core/comm/flight/folder.h"
#include "core/launch/local_ranks.h"

namespace trireme::apps {

/// Why a run fails.
struct CauseMessage {
  std::string line{};
  bool has_table = false;  ///< of what the ranks were doing
};

class RunMessages {
 public:
  RunMessages(ranks::EventLoop& loop, const StartOptions& options)
      : options_(options), outputs_{{loop, stdout, options.tag_output}, {loop, stderr, options.tag_output}} {}
  /// Where the ranks write their flight records; "" if there is no folder.
  [[nodiscard]] const std::string& flight_folder() const { return folder_.path(); }
  /// A part of a rank's output, as RankEvents has it.
  void add_output(int rank, int stream, std::string_view text);
  /// Adds the beginnings of lines that have waited long enough.
  void write_waiting() {
    for (auto& output : outputs_) output.write_waiting();
  }
  /// How many bytes are to be written yet.
  [[nodiscard]] std::size_t unwritten() const { return outputs_[0].unwritten() + outputs_[1].unwritten(); }

  /// Tells the user that a training stops.
  void say_stopping();
  /// Says the error of a rank that has dealt with it.
  void say_error_of(const ranks::RankState& rank);
  /// Says the errors of programs after which a rank's shell goes on.
  void say_errors_of_shells(const std::vector<ranks::RankState>& states);
  CauseMessage say_cause(const ranks::Cause& cause, const std::vector<ranks::RankState>& states);

 private:
  using Clock = std::chrono::steady_clock;
  [[nodiscard]] std::string table(const ranks::Cause& cause, const std::vector<ranks::RankState>& states) const;
  [[nodiscard]] std::string text_of(const ranks::RankState& rank) const;

  const StartOptions& options_;
  RankOutput outputs_[2];
  comm::flight::ParentFolder folder_;
  bool said_stopping_ = false;
  std::set<int> complained_;                            ///< ranks that wrote to standard error
  std::set<int> told_;                                  ///< ranks whose error is said, though they go on
  std::map<int, Clock::time_point> below_shell_since_;  ///< an error of a process that the rank has started
};

/// Reports that a signal to this process ended the run, and what that means: "" or "; ...". Returns the exit code. Does
/// not wait long for whoever reads it.
int report_stop(int signal, const std::string& meaning = "");

}  // namespace trireme::apps
