// HostCopies: tensors of a device on their way into pinned host memory, while the device computes on.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <map>
#include <optional>

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

}  // namespace trireme::zero
