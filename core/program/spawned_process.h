// The side of spawn() in a rank's process: how the process starts, and what it does at the call.
#pragma once

#include <functional>
#include <string>

#include "core/launch/process.h"

namespace trireme::detail {

/// The call of spawn(), and a rank's place in it.
struct SpawnCall {
  std::string place;
  int rank, ranks, port, store;
  std::string flight_folder{};  ///< of the ranks' flight records; "" if there is none
};

/// This program, as it was started, as the rank of a call.
ranks::Program program_of_rank(const SpawnCall& call, bool on_cpu);

/// In a process that spawn() has started: runs `body`, reports to the caller and ends the process, or returns true if
/// `place` is an earlier call than the process's own. False in other processes.
bool run_as_rank(const std::string& place, const std::function<std::string()>& body);

}  // namespace trireme::detail
