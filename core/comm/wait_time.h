// The time that this process's threads have spent in Work::wait(): for CPU ranks the part of communication that
// computation did not hide. On a GPU a wait only orders streams, and takes no time on the host.
#pragma once

#include <chrono>

namespace trireme::comm {

/// Since the start of the process.
std::chrono::nanoseconds time_in_waits();

}  // namespace trireme::comm
