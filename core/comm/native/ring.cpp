#include "core/comm/native/ring.h"

#include <algorithm>
#include <cstring>

namespace trireme::comm::native {

RingPair::RingPair(const Segment& own, int own_rank, const Segment& other, int other_rank)
    : out_{other.ring(own_rank), other.ring_data(own_rank)},
      in_{own.ring(other_rank), own.ring_data(other_rank)},
      bell_(other.bell()) {}

/// Copies what there is room for, and does not publish it yet.
std::size_t RingPair::copy_in(const std::byte* data, std::size_t bytes) {
  if (out_.mine + bytes - out_.theirs > kRingBytes) out_.theirs = out_.state.read.load(std::memory_order_acquire);
  const auto count = std::min<std::size_t>(bytes, kRingBytes - (out_.mine - out_.theirs));
  const auto at = out_.mine % kRingBytes;
  const auto first = std::min(count, kRingBytes - at);
  if (first > 0) std::memcpy(out_.data + at, data, first);
  if (count > first) std::memcpy(out_.data, data + first, count - first);
  out_.mine += count;
  return count;
}

std::size_t RingPair::put(std::span<const iovec> parts) {
  // A long part is published while it is being copied, so that the other rank copies at the same time.
  constexpr std::size_t kPublish = 16u << 10;
  const auto begin = out_.mine;
  auto published = begin;
  const auto publish = [&] {
    if (published == out_.mine) return;
    out_.state.written.store(out_.mine, std::memory_order_release);
    published = out_.mine;
    bell_.ring();
  };
  for (const auto& part : parts) {
    const auto* data = static_cast<const std::byte*>(part.iov_base);
    for (std::size_t done = 0; done < part.iov_len;) {
      const auto count = copy_in(data + done, std::min(part.iov_len - done, kPublish));
      done += count;
      if (count > 0) {
        if (out_.mine - published >= kPublish) publish();
        continue;
      }
      publish();
      // Full. The reader sees that this rank waits, or this rank sees the room that it has made.
      out_.state.writer_waits.store(1, std::memory_order_seq_cst);
      std::atomic_thread_fence(std::memory_order_seq_cst);
      if (out_.mine - out_.state.read.load(std::memory_order_seq_cst) == kRingBytes) return out_.mine - begin;
    }
  }
  publish();
  return out_.mine - begin;
}

std::size_t RingPair::get(void* data, std::size_t bytes) {
  if (in_.theirs - in_.mine < bytes) in_.theirs = in_.state.written.load(std::memory_order_acquire);
  const auto count = std::min<std::size_t>(bytes, in_.theirs - in_.mine);
  if (count == 0) return 0;
  const auto at = in_.mine % kRingBytes;
  const auto first = std::min(count, kRingBytes - at);
  std::memcpy(data, in_.data + at, first);
  if (count > first) std::memcpy(static_cast<std::byte*>(data) + first, in_.data, count - first);
  in_.mine += count;
  in_.state.read.store(in_.mine, std::memory_order_release);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (in_.state.writer_waits.load(std::memory_order_relaxed) != 0 &&
      in_.state.writer_waits.exchange(0, std::memory_order_seq_cst) != 0)
    bell_.ring();
  return count;
}

}  // namespace trireme::comm::native
