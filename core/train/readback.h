// Readback: copies small device tensors to the host without blocking the step. On the CPU they are available at once;
// on a GPU they are copied to pinned host memory after the step and read when their event has completed.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

namespace trireme::train {

class Readback {
 public:
  static constexpr std::size_t kLag = 4;  ///< a GPU that has as many steps before it never waits for the host
  using Then = std::function<void(const std::vector<double>&)>;
  /// Reads tensors (of any dtype; an undefined one reads as one 0) and later calls `then` with their elements, in the
  /// order of the add() calls.
  void add(const std::vector<at::Tensor>& tensors, Then then);
  /// Calls `then` for those that are ready; at most kLag stay pending.
  void poll();
  /// Waits for all of them, or for all but the last `left`.
  void drain() { drain_to(0); }
  void drain_to(std::size_t left);
  /// The number of added entries that may still be pending after add().
  [[nodiscard]] static std::int64_t lag(c10::Device device) {
    return device.is_cpu() ? 0 : static_cast<std::int64_t>(kLag);
  }

 private:
  struct Pending {
    at::Tensor host;
    std::unique_ptr<c10::Event> event;
    Then then;
  };
  void finish_front(bool wait);
  std::deque<Pending> pending_;
};

}  // namespace trireme::train
