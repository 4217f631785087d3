// FlightWatch: the front's eye on the ranks that it has started on this machine. It owns the folder of their flight
// records (core/comm/flight), sees that a rank has died or that an operation has failed, and prints the one report.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "apps/front/verdict.h"
#include "core/comm/flight/folder.h"
#include "core/comm/flight/mapped_file.h"
#include "core/comm/flight/reader.h"

namespace trireme::apps {

class FlightWatch {
 public:
  FlightWatch(int world_size, Ranks ranks);
  /// Sets the variable that tells the ranks the folder, in a list of NAME=VALUE.
  void set_variable(std::vector<std::string>& environment) const;

  /// To be called several times a second while the ranks run; reads the records at most ten times a second. Prints the
  /// report when an operation has failed. A death is kept until the launcher says how the rank ended, for some seconds.
  void look();
  /// A signal has ended this rank. Prints the report if it is one of several of a world.
  void rank_died(int rank, int signal);
  /// Tells the ranks that a signal from now on comes from the end of the run.
  void note_dying();
  /// Whether the report is on standard error: the exit code is then that of a communication error.
  [[nodiscard]] bool printed() const { return printed_; }
  /// The first line of the report; "" before it.
  [[nodiscard]] const std::string& headline() const { return headline_; }
  /// Whether the ranks are a training that takes a signal for a request to save and stop.
  [[nodiscard]] bool takes_signals() const;
  /// Whether they are or were one.
  [[nodiscard]] bool is_training() const;
  /// Whether the ranks were a training that a signal asked to stop, and that has done so.
  [[nodiscard]] bool stopped_as_asked() const;
  /// "; ..." what a training has not saved that a signal ended before it could; "" when it had stopped as asked, and
  /// for other programs.
  [[nodiscard]] std::string unsaved() const;
  /// `end` with what the ranks have left here: RunEnd::saved_step, smaller_micro_batch and trained_in.
  [[nodiscard]] RunEnd completed(RunEnd end) const;
  /// Whether the ranks should have ended by themselves since then.
  [[nodiscard]] bool overdue() const;

 private:
  using Clock = std::chrono::steady_clock;
  void print(const std::vector<comm::flight::RankView>& ranks);
  [[nodiscard]] comm::flight::Control* control() const;

  comm::flight::ParentFolder folder_;
  comm::flight::MappedFile control_;
  int world_size_;
  Ranks ranks_;
  Clock::time_point looked_;
  std::optional<Clock::time_point> noticed_;
  std::vector<comm::flight::RankView> at_death_;  ///< what the records said when a death was noticed
  std::map<int, std::string> ended_;
  bool printed_ = false;
  std::string headline_;
  Clock::time_point printed_at_;
};

}  // namespace trireme::apps
