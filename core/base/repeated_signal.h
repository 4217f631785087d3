// How requests to stop a training are acknowledged, and when a second signal is a second request: the launcher and the
// ranks must agree on it.
#pragma once

#include <ctime>
#include <string_view>

namespace trireme {

/// What the user sees after the first signal, once.
inline constexpr std::string_view kStoppingLine =
    "stopping: the step in progress is finished and saved; a second signal ends the run at once\n";

/// Whether a signal that comes now is another request than that of `first` (CLOCK_MONOTONIC): a terminal, a launcher
/// and a program around this one may all pass on the same, within a second. Safe in a signal handler.
inline bool is_second_request(const timespec& first) {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec - first.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec - first.tv_nsec) > 1;
}

}  // namespace trireme
