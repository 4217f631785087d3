// Reads the flight records of the ranks of a host, while they run or when they have ended, and what the kernel says
// about their processes. Uses nothing of LibTorch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/comm/flight/record.h"

namespace trireme::comm::flight {

enum class ProcessState : std::uint8_t { running, stopped, gone };

/// When a process has started, as field 22 of /proc/PID/stat says it; 0 when there is no such process.
std::int64_t process_start(int pid);
/// Of the process with this number and start. A zombie is gone: only its exit code is left.
ProcessState process_state(int pid, std::int64_t start);
/// Identifies the namespace in which process numbers of this process are valid; 0 if unknown.
std::uint64_t pid_namespace();

/// A copy of a rank's record at one moment.
struct RankView {
  RankRecord record;
  ProcessState process = ProcessState::running;

  /// Its process is gone, and neither it nor a signal that it handled says why.
  [[nodiscard]] bool died() const {
    return process == ProcessState::gone && record.end == EndKind::none && record.signal == 0;
  }
  [[nodiscard]] bool failed() const { return record.end == EndKind::lost || record.end == EndKind::error; }
  /// Its operations, oldest first.
  [[nodiscard]] std::vector<OperationRecord> operations() const;
  /// What it waits in: an operation that has failed, else the oldest one that is not complete. Null: none.
  [[nodiscard]] const OperationRecord* current() const;
  [[nodiscard]] const OperationRecord* last_completed() const;
  [[nodiscard]] const OperationRecord* find(std::uint64_t group, std::uint64_t sequence) const;
  [[nodiscard]] const GroupRecord* find_group(std::uint64_t group) const;
};

/// The records in a folder, by rank. Files that are no records, or of another version, are left out.
std::vector<RankView> read_ranks(const std::string& folder);

}  // namespace trireme::comm::flight
