// RingPipe: a pair of rings in shared memory, each with one writer and one reader.
#pragma once

#include "core/comm/native/pipe.h"
#include "core/comm/native/segment.h"

namespace trireme::comm::native {

/// One side of a ring. Positions that the other side writes are read from shared memory only when the known ones do not
/// suffice, so that a cache line moves between cores once for many bytes.
struct RingEnd {
  RingState& state;
  std::byte* data;
  std::uint64_t mine = 0, theirs = 0;
};

class RingPipe final : public Pipe {
 public:
  /// Both segments must outlive it. `bell`: the other rank's.
  RingPipe(const Segment& own, int own_rank, const Segment& other, int other_rank, Doorbell bell);
  std::size_t put(std::span<const iovec> parts) override;
  std::size_t get(void* data, std::size_t bytes) override;
  [[nodiscard]] bool readable() const override {
    return in_.theirs != in_.mine || in_.state.written.load(std::memory_order_acquire) != in_.mine;
  }

 private:
  std::size_t copy_in(const std::byte* data, std::size_t bytes);
  RingEnd out_, in_;
  Doorbell bell_;
};

}  // namespace trireme::comm::native
