// FlightWatch: the front's eye on the ranks that it has started on this machine. It owns the folder of their flight
// records (core/comm/flight), sees that a rank has died or that an operation has failed, and prints the one report.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
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
  /// `here`: whether all ranks run on this machine.
  FlightWatch(int world_size, bool here, Ranks ranks);
  /// Sets the variable that tells the ranks the folder, in this process's environment.
  void set_variable() const;
  /// The same in a list of NAME=VALUE.
  void set_variable(std::vector<std::string>& environment) const;

  /// To be called several times a second while the ranks run; reads the records at most ten times a second. Prints the
  /// report when an operation has failed. A death is kept until the launcher says how the rank ended, for some seconds.
  void look();
  /// A signal has ended this rank, whose name begins with "rank N". Prints the report if it is a rank of a world.
  void rank_died(int rank, const std::string& name, int signal);
  /// All ranks have ended, and the launcher says that a signal ended one of them; 0: none, or unknown. Prints the
  /// report if a failure has been seen.
  void all_ended(int signal);
  /// Tells the ranks that a signal from now on comes from the end of the run.
  void note_dying();
  [[nodiscard]] int world_size() const { return world_size_; }
  /// Whether the report is on standard error: the exit code is then that of a communication error.
  [[nodiscard]] bool printed() const { return printed_; }
  /// The first line of the report; "" before it.
  [[nodiscard]] const std::string& headline() const { return headline_; }
  /// Whether the ranks are a training that takes a signal for a request to save and stop. The pointer, which is never
  /// null, may be read in a signal handler.
  [[nodiscard]] bool takes_signals() const { return std::atomic_ref(*takes_signals_flag()).load() == 1; }
  /// Whether they are or were one.
  [[nodiscard]] bool is_training() const { return std::atomic_ref(*takes_signals_flag()).load() != 0; }
  [[nodiscard]] std::int32_t* takes_signals_flag() const;
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
  bool here_;
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
