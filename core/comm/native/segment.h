// Segment: a rank's memory that the other ranks of its host map: its doorbell, and a ring from each of them, which that
// rank writes and this one reads.
//
// It is an anonymous file in memory (memfd), which others open by /proc/PID/fd: nothing is left when processes are
// killed, and the size of /dev/shm, small in containers, does not matter. A ring that no rank uses takes no memory.
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "core/base/file_descriptor.h"
#include "core/base/mapped_bytes.h"

namespace trireme::comm::native {

/// Wakes the sleeping threads of a rank. It is in shared memory, so any rank of the host can ring it.
///
/// A thread that wants to sleep says so first (prepare), looks once more for something to do, and then sleeps unless
/// the bell has rung since. Whoever gives it something to do rings after that is visible; the bell makes a system call
/// only when a thread sleeps or is about to. Sequentially consistent fences on both sides make one of them see the
/// other.
struct BellState {
  std::atomic<std::uint32_t> rings{0};
  std::atomic<std::uint32_t> sleepers{0};
};

/// One process's handle of a rank's bell.
class Doorbell {
 public:
  explicit Doorbell(BellState& state) : state_(&state) {}
  void ring() const;

  // For the owner:
  std::uint32_t prepare() const {
    state_->sleepers.fetch_add(1, std::memory_order_seq_cst);
    const auto ticket = state_->rings.load(std::memory_order_seq_cst);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    return ticket;
  }
  void cancel() const { state_->sleepers.fetch_sub(1, std::memory_order_seq_cst); }
  /// Waits until the bell has rung since prepare() returned `ticket`, or the time has passed. cancel() must follow.
  void wait(std::uint32_t ticket, std::chrono::nanoseconds at_most) const;

 private:
  BellState* state_;
};

constexpr std::size_t kRingBytes = 256u << 10;  // a power of two

/// The positions of a ring, counted in bytes since its beginning. The two sides write to separate cache lines.
struct RingState {
  alignas(64) std::atomic<std::uint64_t> written{0};
  alignas(64) std::atomic<std::uint64_t> read{0};
  alignas(64) std::atomic<std::uint32_t> writer_waits{0};  ///< for room
};

/// Distinguishes this segment from whatever else another process may have at the same number.
using Token = std::array<std::uint64_t, 2>;

class Segment {
 public:
  /// This rank's own, with a ring from each of `ranks`. @throws CommError.
  static Segment create(int ranks);
  /// Maps another rank's, which is open there as `fd`. @throws CommError.
  static Segment map(pid_t pid, int fd, const Token& token, int ranks);

  [[nodiscard]] int fd() const { return file_.get(); }
  /// When all have mapped it.
  void close_file() { file_ = FileDescriptor(); }
  [[nodiscard]] const Token& token() const;
  [[nodiscard]] BellState& bell() const;
  [[nodiscard]] RingState& ring(int from) const;
  [[nodiscard]] std::byte* ring_data(int from) const;

 private:
  struct Header;
  Segment(FileDescriptor file, int ranks);
  [[nodiscard]] Header& header() const { return *static_cast<Header*>(memory_.get()); }
  [[nodiscard]] std::byte* at(std::size_t offset) const { return static_cast<std::byte*>(memory_.get()) + offset; }

  FileDescriptor file_;
  int ranks_;
  std::size_t bytes_;
  Mapping memory_{};
};

}  // namespace trireme::comm::native
