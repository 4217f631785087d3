// RingPair: a stream of bytes to another rank and one from it, in shared memory. Each ring has one writer and one
// reader. Nothing here blocks.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <span>

#include "core/comm/native/segment.h"

namespace trireme::comm::native {

/// One side of a ring. Positions that the other side writes are read from shared memory only when the known ones do not
/// suffice, so that a cache line moves between cores once for many bytes.
struct RingEnd {
  RingState& state;
  std::byte* data;
  std::uint64_t mine = 0, theirs = 0;
};

class RingPair {
 public:
  /// Both segments must outlive it.
  RingPair(const Segment& own, int own_rank, const Segment& other, int other_rank);
  /// Writes the beginning of these parts, as much as there is room for. Returns the number of bytes; the other rank is
  /// woken for them. When there was not room for all, this rank is woken as soon as there may be.
  std::size_t put(std::span<const iovec> parts);
  /// Reads at most `bytes`, as many as have arrived. Returns their number.
  std::size_t get(void* data, std::size_t bytes);
  /// Whether get() may find something, at less cost than calling it.
  [[nodiscard]] bool readable() const {
    return in_.theirs != in_.mine || in_.state.written.load(std::memory_order_acquire) != in_.mine;
  }

 private:
  std::size_t copy_in(const std::byte* data, std::size_t bytes);
  RingEnd out_, in_;
  Doorbell bell_;  // the other rank's
};

}  // namespace trireme::comm::native
