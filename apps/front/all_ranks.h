// The ranks of a run as processes, on all of its hosts: starts, signals and ends them. What the end of a rank means for
// the run is decided in start_ranks.cpp.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "apps/front/event_loop.h"
#include "apps/front/flight_watch.h"
#include "apps/front/local_ranks.h"
#include "apps/front/remote_ranks.h"
#include "apps/front/start_ranks.h"

namespace trireme::apps {

class AllRanks {
 public:
  /// `watch` tells its folder to the ranks of this machine. `failed`: a host cannot take part, or no longer. The
  /// functions are called from within EventLoop::run_once().
  AllRanks(EventLoop& loop, const StartOptions& options, const FlightWatch& watch, RankEvents events,
           std::function<void(const HostFailure& failure)> failed);

  /// Starts those of the first host, and the others as soon as rank 0's port is known, unless the run is ending by
  /// then. @throws ConfigError when the program cannot be executed
  void start();
  /// Whether the end of a rank is not reported yet.
  [[nodiscard]] bool busy() const;
  void send(int signal);
  /// Sends the signal to all ranks; those that still run after this time, or after that of an earlier call, get
  /// SIGKILL.
  void end(int signal, std::chrono::seconds patience);
  /// The ranks end by themselves; those that still run after this time get SIGKILL.
  void expect_end(std::chrono::seconds patience);
  [[nodiscard]] bool is_ending() const { return deadline_.has_value(); }
  /// To be called several times a second: kills the ranks that have not ended in time, and gives up hosts that do not
  /// answer then.
  void check_deadline();
  /// Whether ranks were killed because they had not ended in time.
  [[nodiscard]] bool killed() const { return killed_; }
  /// To be called after SIGCHLD.
  void collect();

 private:
  using Clock = std::chrono::steady_clock;
  void start_host(std::size_t index);
  void start_others();

  EventLoop& loop_;
  const StartOptions& options_;
  const FlightWatch& watch_;
  RankEvents events_;
  std::function<void(const HostFailure& failure)> failed_;
  std::optional<comm::StoreSocket> store_;
  comm::StoreAddress address_;
  LocalRanks* local_ = nullptr;
  std::vector<std::unique_ptr<HostRanks>> hosts_;
  std::optional<Clock::time_point> deadline_;
  bool killed_ = false;
};

/// Ranks on all hosts.
int ranks_of(const StartOptions& options);

}  // namespace trireme::apps
