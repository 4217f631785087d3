// The processes of the other ranks, whose memory this rank maps. All ranks are on one host.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/base/file_descriptor.h"
#include "core/comm/native/segment.h"
#include "core/comm/world.h"

namespace c10d {
class Store;
}  // namespace c10d

namespace trireme::comm::native {

/// Another rank's.
struct Process {
  std::optional<Segment> segment;
  pid_t pid = 0;
  FileDescriptor descriptor;  ///< pidfd; none where the kernel has none
  std::int64_t start = 0;     ///< flight::process_start(); 0: unknown
  bool reads_memory = false;  ///< this rank may read its memory
  /// Whether it has ended, also when its parent has not asked for its exit code.
  [[nodiscard]] bool has_ended() const;
};

struct Processes {
  int rank = 0;  ///< this one's
  std::optional<Segment> own;
  std::vector<Process> others;  ///< by world rank; this rank's own is empty
};

/// The ranks meet in the store, and each maps the segments of the others. Collective. @throws CommError on every rank,
/// with the reason of the one that failed.
Processes meet(const LaunchInfo& info, c10d::Store& store);

}  // namespace trireme::comm::native
