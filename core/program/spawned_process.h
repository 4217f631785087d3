// A process that spawn() has started: what it knows from its start on, and its report to the caller. Private to
// core/booster.
#pragma once

#include <string>

#include "core/launch/process.h"
#include "core/launch/rank_report.h"

namespace trireme {

/// Names the call of spawn() at which a rank's process runs the function: "FILE:LINE:COLUMN#NUMBER".
inline constexpr const char* kSpawnCall = "TRIREME_SPAWN";
/// "RANK RANKS PORT STORE": the rank's place, and the descriptor of rank 0's store. Its variables are set only at the
/// call, so that main() sees until then what it saw in the caller.
inline constexpr const char* kSpawnRank = "TRIREME_SPAWN_RANK";

/// The call of spawn(), and a rank's place in it.
struct SpawnCall {
  std::string place;
  int rank, ranks, port, store;
  std::string flight_folder{};  ///< of the ranks' flight records; "" if there is none
};

/// This program, as it was started, as the rank of a call.
ranks::Program program_of_rank(const SpawnCall& call, bool on_cpu);

/// This process, if spawn() has started it.
class SpawnedProcess {
 public:
  /// Null in other processes.
  static SpawnedProcess* get();
  [[nodiscard]] const std::string& call() const { return call_.place; }
  /// Whether the call is reached: the function runs.
  [[nodiscard]] bool reached() const { return reached_; }
  /// Restores standard output and error, and sets the rank's variables.
  void reach();
  // Report to the caller and end this process.
  [[noreturn]] void end(const std::string& result);
  [[noreturn]] void fail(const ranks::Failure& failure);

  explicit SpawnedProcess(SpawnCall call);

 private:
  SpawnCall call_;
  int output_ = -1, error_ = -1;  ///< the real streams
  bool reached_ = false;
};

}  // namespace trireme
