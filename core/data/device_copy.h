// DeviceCopy: takes the samples of a step to the device ahead of their use, on a stream of its own, so that neither the
// host nor the stream that computes waits for the copy.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <memory>
#include <optional>
#include <vector>

namespace trireme::data {

/// Copies that may still be on their way. On the CPU, and by default, there is nothing to wait for.
class PendingCopies {
 public:
  /// Orders the current stream of this thread after the copies, and keeps their memory until what that stream then does
  /// is done. The host does not wait.
  void wait() const;

 private:
  friend class DeviceCopy;
  struct State;
  std::shared_ptr<const State> state_;
};

class DeviceCopy {
 public:
  explicit DeviceCopy(c10::Device device);
  /// Replaces each tensor by its copy on the device; on the CPU they stay what they are. Copies of pinned tensors are
  /// asynchronous. For use by any thread.
  [[nodiscard]] PendingCopies start(const std::vector<at::Tensor*>& tensors) const;

 private:
  c10::Device device_;
  std::optional<c10::Stream> stream_;
};

}  // namespace trireme::data
