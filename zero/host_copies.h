// Copies between a device and host memory, on a stream of their own while the device computes on.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <functional>
#include <map>
#include <optional>
#include <utility>

namespace trireme::zero {

/// Of a tensor that is in host memory already there is no copy: begin() does nothing, and wait() gives itself.
class HostCopies {
 public:
  /// `tensor` sets out when what its device has been told so far is done. It must stay as it is until wait() or the
  /// next begin() with this key.
  void begin(std::size_t key, const at::Tensor& tensor);
  /// The copy of what begin() was given, arrived; `tensor`'s own values where it was not called. For the host to read.
  at::Tensor wait(std::size_t key, const at::Tensor& tensor);
  void drop(std::size_t key);

 private:
  struct Copy {
    at::Tensor from, to;
    c10::Event arrived;
  };
  std::map<std::size_t, Copy> copies_;
  std::optional<c10::Stream> beside_;  ///< one, so that copies arrive in order
};

/// Tensors in host memory on their way to a device. To a device that is the host itself they are copied at once.
class DeviceCopies {
 public:
  /// Copies `from` to `to` when what the device has been told so far is done, for it may still read the memory of `to`.
  /// `then` is called at once, with the copy's stream as the current one: a collective that begins there waits for the
  /// copy, and not for what the device is told meanwhile. Both tensors must live until wait(key) has been called, and
  /// `from` stay as it is until the device has got there.
  void begin(std::size_t key, const at::Tensor& from, const at::Tensor& to, const std::function<void()>& then);
  /// What this thread's current stream is told from here on follows the copy. Nothing where begin() was not called.
  void wait(std::size_t key);

 private:
  std::map<std::size_t, std::pair<c10::Device, c10::Event>> arriving_;
  std::optional<c10::Stream> beside_;
};

}  // namespace trireme::zero
