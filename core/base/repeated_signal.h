// When a second signal is a second request to stop. The front and the ranks must agree on it.
#pragma once

#include <ctime>

namespace trireme {

/// Whether a signal that comes now is another request than that of `first` (CLOCK_MONOTONIC): a terminal, a launcher
/// and a program around this one may all pass on the same, within a second. Safe in a signal handler.
inline bool is_second_request(const timespec& first) {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec - first.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec - first.tv_nsec) > 1;
}

}  // namespace trireme
