// The time of day, for files that other programs read.
#pragma once

#include <chrono>

namespace trireme {

/// Seconds since 1970 in UTC.
inline double unix_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace trireme
