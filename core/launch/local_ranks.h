// Ranks as processes of this machine: starts them, forwards their output, sends them signals, notices what they report
// and how they end.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "core/launch/event_loop.h"
#include "core/launch/process.h"
#include "core/launch/rank_report.h"

namespace trireme::ranks {

/// What is known about a rank.
struct RankState {
  int rank = 0;
  pid_t process = 0;
  RankReport report{};
  std::optional<int> status{};  ///< how its process has ended, as waitpid() says it; none: it runs

  [[nodiscard]] bool ended() const { return status.has_value(); }
  /// The signal that ended it; 0: none.
  [[nodiscard]] int signal() const;
  /// Its exit code; 128 + n if signal n ended it; 0: it runs.
  [[nodiscard]] int code() const;
};

struct RankSettings {
  int store_socket = -1;  ///< rank 0 inherits it; -1: none
  sigset_t blocked{};     ///< the signals that they block
  /// Of spawn(): the ranks inherit nothing else of the program, write where it does, and are in its process group.
  bool of_spawn = false;
};

/// Functions that are called from within EventLoop::run_once() and collect().
struct RankEvents {
  /// A part of rank `rank`'s standard output (1) or error (2); "" at its end.
  std::function<void(int rank, int stream, std::string_view text)> output{};
  std::function<void(const RankState& rank)> ended{};
};

/// Ranks, each in a process group of its own, which gets the signals (the rank alone gets SIGUSR1 and SIGUSR2). A
/// signal that is to end the run also ends what a rank has left behind in its group. All end with this process; if it
/// is killed, only the ranks' own processes do. Their standard input is /dev/null.
class LocalRanks {
 public:
  /// Starts a rank for each program. @throws ConfigError when a program cannot run; no rank is left then
  LocalRanks(EventLoop& loop, std::vector<Program> programs, const RankSettings& settings, RankEvents events = {});
  /// Kills ranks that still run.
  ~LocalRanks();
  LocalRanks(const LocalRanks&) = delete;
  LocalRanks& operator=(const LocalRanks&) = delete;
  /// Sends a signal to every rank that runs.
  void send(int signal);
  /// Sends the signal to all ranks; those that still run after this time, or after that of an earlier call, get
  /// SIGKILL.
  void end(int signal, std::chrono::seconds patience);
  /// The ranks end by themselves; those that still run after this time get SIGKILL.
  void expect_end(std::chrono::seconds patience);
  [[nodiscard]] bool is_ending() const { return deadline_.has_value(); }
  /// To be called several times a second: kills the ranks that have not ended in time, and gives up those that do not
  /// end then, because they wait for a device or a disk for good.
  void check_deadline();
  /// How long was waited for ranks that were killed then; none: all have ended in time.
  [[nodiscard]] std::optional<std::chrono::seconds> killed_after() const { return killed_after_; }
  /// Whether the end of a rank is not noticed yet, and is waited for.
  [[nodiscard]] bool busy() const;
  /// Reads the ranks' outputs, or does not for a while: ranks that write then wait.
  void read_outputs(bool wanted);
  /// Reads what they have written until now.
  void read_outputs_now();
  /// Notices the ranks that have ended, and what all ranks have reported. To be called after SIGCHLD, or often.
  void collect();
  /// What is known about each rank. A rank loses a peer only after that peer has reported its error, which the next
  /// collect() reads, or while that peer's process ends.
  [[nodiscard]] const std::vector<RankState>& states() const { return states_; }

 private:
  using Clock = std::chrono::steady_clock;
  struct Rank {
    pid_t process = -1;              ///< -1: has ended
    pid_t orphans = -1;              ///< its group, if processes of it run on while the run is being ended; -1: none
    bool waits_for_orphans = false;  ///< busy() until they have ended
    FileDescriptor outputs[2];       ///< its standard output and error
    std::unique_ptr<ReportReader> report{};
  };
  void start(std::size_t rank, Program program);
  void read_report(std::size_t rank);
  void watch_output(std::size_t rank, int index);
  void read_output(std::size_t rank, int index, int most_parts);
  void close_output(std::size_t rank, int index);
  void collect_orphans(Rank& rank);
  void on_end(std::size_t rank, int status);
  void kill_all();

  EventLoop& loop_;
  RankSettings settings_;
  RankEvents events_;
  std::vector<Rank> ranks_;  // fixed after the start
  std::vector<RankState> states_;
  bool ending_ = false;  // the ranks got a signal that is to end them
  std::optional<Clock::time_point> deadline_;
  std::chrono::seconds patience_{0};
  std::optional<std::chrono::seconds> killed_after_;
  bool gave_up_ = false;
  bool reads_outputs_ = true;
};

}  // namespace trireme::ranks
