// Connections: everything that joins this rank to the others, as the start has made it.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/comm/file_descriptor.h"
#include "core/comm/native/segment.h"
#include "core/comm/world.h"

namespace c10d {
class Store;
}  // namespace c10d

namespace trireme::comm::native {

/// Another rank: on this host (segment) or on another one (socket).
struct Connection {
  std::optional<Segment> segment;
  pid_t pid = 0;
  FileDescriptor process;     ///< pidfd; none where the kernel has none
  bool reads_memory = false;  ///< this rank may read that one's memory
  FileDescriptor wake;        ///< its pipe, when there are several hosts
  FileDescriptor socket;
  /// Whether the process of a rank on this host has ended, also when its parent has not asked for its exit code.
  [[nodiscard]] bool has_ended() const;
};

struct Connections {
  int rank = 0, size = 1;
  std::optional<Segment> own;
  std::vector<Connection> others;            ///< by world rank; this rank's own is empty
  FileDescriptor wake_reads, wake_writes;    ///< this rank's pipe, when there are several hosts
  int on_this_host = 1;                      ///< ranks, with this one
  bool any_shared = false, any_tcp = false;  ///< whether any two ranks of the world communicate in this way
};

/// Connects all ranks, which meet in the store. Collective. @throws CommError on every rank, with the reason of the one
/// that failed.
Connections connect_ranks(const LaunchInfo& info, c10d::Store& store, std::chrono::milliseconds timeout);

}  // namespace trireme::comm::native
