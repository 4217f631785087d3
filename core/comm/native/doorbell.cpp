#include "core/comm/native/doorbell.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>

namespace trireme::comm::native {
namespace {

// Not FUTEX_PRIVATE: the word is shared between processes.
long futex(std::atomic<std::uint32_t>& word, int operation, std::uint32_t value, const timespec* timeout) {
  return syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), operation, value, timeout, nullptr, 0);
}

}  // namespace

void Doorbell::ring() const {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (state_->sleepers.load(std::memory_order_relaxed) == 0) return;
  state_->rings.fetch_add(1, std::memory_order_seq_cst);
  futex(state_->rings, FUTEX_WAKE, INT_MAX, nullptr);
}

void Doorbell::wait(std::uint32_t ticket, std::chrono::nanoseconds at_most) const {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(at_most);
  const timespec timeout{.tv_sec = seconds.count(), .tv_nsec = (at_most - seconds).count()};
  futex(state_->rings, FUTEX_WAIT, ticket, &timeout);
}

}  // namespace trireme::comm::native
