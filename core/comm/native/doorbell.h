// Doorbell: wakes the sleeping threads of a rank. It is in shared memory, so any rank of the host can ring it.
//
// A thread that wants to sleep says so first (prepare), looks once more for something to do, and then sleeps unless the
// bell has rung since. Whoever gives it something to do rings after that is visible; the bell makes a system call only
// when a thread sleeps or is about to. Sequentially consistent fences on both sides make one of them see the other.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace trireme::comm::native {

/// In shared memory.
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

}  // namespace trireme::comm::native
