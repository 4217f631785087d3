// Staging: a host tensor in memory order for each tensor of a call. Contiguous CPU tensors stand for themselves;
// others (strided, CUDA) get a copy, which goes back when the operation is complete.
//
// CUDA: the copy to the host goes into pinned memory on the caller's current stream, and the operation begins when an
// event behind it has passed. All through LibTorch's device-independent calls: nothing here needs its CUDA library.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <functional>
#include <utility>
#include <vector>

namespace trireme::comm::mpi {

class Staging {
 public:
  /// A host tensor that holds the values of `tensor`.
  at::Tensor input(const at::Tensor& tensor) { return stage(tensor, true, false); }
  /// A host tensor to be filled; its values reach `tensor` in finish().
  at::Tensor output(const at::Tensor& tensor) { return stage(tensor, false, true); }
  at::Tensor in_place(const at::Tensor& tensor) { return stage(tensor, true, true); }

  /// Whether all inputs are on the host; empty when they were from the start.
  [[nodiscard]] std::function<bool()> ready();
  /// Copies the results back; empty when there is nothing to copy.
  [[nodiscard]] std::function<void()> finish();

 private:
  at::Tensor stage(const at::Tensor& tensor, bool reads, bool writes);
  std::vector<std::pair<at::Tensor, at::Tensor>> back_;  // {host, the caller's}
  std::vector<c10::Device> devices_;                     // with work to wait for
};

}  // namespace trireme::comm::mpi
