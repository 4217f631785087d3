// Ranks as processes of this machine: starts them, forwards their output, sends them signals, notices their ends.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/front/event_loop.h"

namespace trireme::apps {

/// What to execute.
struct Program {
  std::vector<std::string> words{};        ///< the program and its arguments
  std::vector<std::string> environment{};  ///< NAME=VALUE
};

/// How a process ended, as waitpid() says it.
struct RankEnd {
  int rank = 0, status = 0;
  /// The signal that ended it; 0: none.
  [[nodiscard]] int signal() const;
  /// Its exit code; 128 + n if signal n ended it.
  [[nodiscard]] int code() const;
};

/// Functions that are called from within EventLoop::run_once().
struct RankEvents {
  /// A part of rank `rank`'s standard output (1) or error (2); "" at its end.
  std::function<void(int rank, int stream, std::string_view text)> output;
  std::function<void(const RankEnd& end)> ended;
};

/// The name or path of a program as a file that can be executed; "" if there is none.
std::string find_program(const std::string& name);

/// The texts as the argument array of execv().
std::vector<char*> pointers(std::vector<std::string>& texts);

/// Ranks, each in a process group of its own, which gets the signals (the rank alone gets SIGUSR1 and SIGUSR2). A
/// signal that is to end the run also ends what a rank has left behind in its group. All end with this process; if it
/// is killed, only the ranks' own processes do. Their standard input is /dev/null.
class LocalRanks {
 public:
  /// Starts a rank for each program. `store_socket`: rank 0 inherits it; -1: none. @throws ConfigError when a program
  /// cannot run; no rank is left then
  LocalRanks(EventLoop& loop, std::vector<Program> programs, int store_socket, RankEvents events);
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
  /// Whether the end of a rank is not reported yet, and is waited for.
  [[nodiscard]] bool busy() const;
  /// To be called after SIGCHLD: reports the ranks that have ended.
  void collect();

 private:
  using Clock = std::chrono::steady_clock;
  struct Rank {
    int rank = 0;
    pid_t process = -1;              ///< -1: has ended
    pid_t orphans = -1;              ///< its group, if processes of it run on while the run is being ended; -1: none
    bool waits_for_orphans = false;  ///< busy() until they have ended
    int descriptors[2] = {-1, -1};   ///< its standard output and error
  };
  void start(Rank& rank, Program program, int store_socket);
  void read_output(Rank& rank, int index);
  void close_output(Rank& rank, int index);
  void kill_all();

  EventLoop& loop_;
  RankEvents events_;
  std::vector<Rank> ranks_;  // fixed after the start: the loop refers to its elements
  bool ending_ = false;      // the ranks got a signal that is to end them
  std::optional<Clock::time_point> deadline_;
  std::chrono::seconds patience_{0};
  std::optional<std::chrono::seconds> killed_after_;
  bool gave_up_ = false;
};

}  // namespace trireme::apps
