// Staging: a contiguous CPU tensor for each tensor of a call. Contiguous CPU tensors are used directly; others
// (strided, CUDA) get a copy, which is copied back when the operation is complete.
//
// CUDA: the copy to the host goes into pinned memory on the caller's current stream, and the operation begins when an
// event recorded after it is complete. Only LibTorch's device-independent calls are used, so LibTorch's CUDA library is
// not needed.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <functional>
#include <utility>
#include <vector>

namespace trireme::comm::engine {

class Staging {
 public:
  /// A CPU tensor, which holds the values of `tensor` if the call `reads` it; if it `writes` it, finish() copies the
  /// values back.
  at::Tensor stage(const at::Tensor& tensor, bool reads, bool writes);
  /// Returns a function that tells whether all tensors are ready on the host; empty when no device work is pending.
  [[nodiscard]] std::function<bool()> ready();
  /// Returns a function that copies the results back; empty when there are none.
  [[nodiscard]] std::function<void()> finish();

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> back_;  // {CPU tensor, the caller's tensor}
  std::vector<c10::Device> devices_;                     // devices whose work must be waited for
};

}  // namespace trireme::comm::engine
