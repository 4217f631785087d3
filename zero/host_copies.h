// Asynchronous copies between a device and host memory, on a separate stream, while the device computes.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <functional>
#include <map>
#include <optional>
#include <utility>

namespace trireme::zero {

/// Copies to host memory. A tensor that is already in host memory is not copied: begin() does nothing, and wait()
/// returns it.
class HostCopies {
 public:
  /// Launches a copy of `tensor`, ordered after all work queued on its device's current stream. The tensor must not be
  /// modified until wait() or the next begin() with this key.
  void begin(std::size_t key, const at::Tensor& tensor);
  /// Waits until the copy of begin() is complete and returns it, for the host to read. Copies `tensor` synchronously if
  /// begin() was not called.
  at::Tensor wait(std::size_t key, const at::Tensor& tensor);
  void drop(std::size_t key);

 private:
  struct Copy {
    at::Tensor from, to;
    c10::Event arrived;
  };
  std::map<std::size_t, Copy> copies_;
  std::optional<c10::Stream> beside_;  ///< one stream, so that copies complete in order
};

/// Copies from host memory to a device. If the device is the CPU, tensors are copied synchronously.
class DeviceCopies {
 public:
  /// Launches a copy of `from` to `to`, ordered after all work queued on the device's current stream, which may still
  /// read the memory of `to`. `then` is called before this function returns, with the copy's stream as the current one:
  /// a collective that it launches waits for the copy, but not for work that is queued meanwhile. Both tensors must
  /// live until wait(key) has been called, and `from` must not be modified until the copy is complete.
  void begin(std::size_t key, const at::Tensor& from, const at::Tensor& to, const std::function<void()>& then);
  /// Orders later work of this thread's current stream after the copy. Does nothing if begin() was not called.
  void wait(std::size_t key);

 private:
  std::map<std::size_t, std::pair<c10::Device, c10::Event>> copy_events_;
  std::optional<c10::Stream> beside_;
};

}  // namespace trireme::zero
