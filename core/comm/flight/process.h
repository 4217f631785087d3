// What the kernel says about a process. Uses nothing of LibTorch.
#pragma once

#include <cstdint>

namespace trireme::comm::flight {

enum class ProcessState : std::uint8_t { running, stopped, gone };

/// When a process has started, as field 22 of /proc/PID/stat says it; 0 when there is no such process.
std::int64_t process_start(int pid);
/// Of the process with this number and start. A zombie is gone: only its exit code is left.
ProcessState process_state(int pid, std::int64_t start);
/// Identifies the namespace in which process numbers of this process are valid; 0 if unknown.
std::uint64_t pid_namespace();

}  // namespace trireme::comm::flight
