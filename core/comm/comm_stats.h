// CommStats: the bytes that a rank sent, per collective and axis. payload: the bytes that the caller passes (the full
// tensor of an all_reduce, reduce, broadcast, send and recv; the full input of a reduce_scatter and all_to_all; the
// full output of an all_gather; the rank's own piece of a gather, and of a scatter off the root). wire: the bytes that
// a ring algorithm would send for it: payload x (N-1)/N, twice that for an all_reduce; payload for send, broadcast and
// a gather off the root; 0 for recv, for the root of a gather, for the others of a scatter and for a barrier. A world
// of one rank adds nothing, and neither do calls made directly to c10d's process group.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>

namespace trireme::comm {

/// The time that this process's threads have spent in Work::wait() since its start: for CPU ranks the part of
/// communication that computation did not hide. On a GPU a wait only orders streams, and takes no time on the host.
std::chrono::nanoseconds time_in_waits();

struct CommStatsEntry {
  std::uint64_t calls = 0;
  std::uint64_t payload_elements = 0;
  std::uint64_t payload_bytes = 0;
  std::uint64_t wire_bytes = 0;
};

/// Thread-safe, because the reducer's hooks run on the autograd thread.
class CommStats {
 public:
  void add(const std::string& axis, const std::string& op, std::uint64_t elements, std::uint64_t bytes,
           double wire_factor);
  /// {axis, op} -> totals since the start of the run.
  [[nodiscard]] std::map<std::pair<std::string, std::string>, CommStatsEntry> totals() const;
  /// Forgets what was added since these were the totals.
  void set_totals(std::map<std::pair<std::string, std::string>, CommStatsEntry> totals);
  /// The wire bytes of all of them.
  [[nodiscard]] std::uint64_t wire_bytes() const;

 private:
  mutable std::mutex mutex_;
  std::map<std::pair<std::string, std::string>, CommStatsEntry> totals_;
};

}  // namespace trireme::comm
