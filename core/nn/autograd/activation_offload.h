// ActivationOffload: the inputs that recomputation saves (core/nn/autograd/recompute.h) lie in host memory between a
// block's forward and backward pass. Ren et al., "ZeRO-Offload", 2021, and Rajbhandari et al., "ZeRO: Memory
// Optimizations", 2020 (checkpoints on the CPU). Only these inputs are moved, not all that autograd saves: they are
// few, large and known, and everything else is dropped by recomputation already.
//
// On a GPU, copies go through pinned memory on streams of their own, and neither the host nor the computation waits for
// them longer than it must:
//   save(i)      the copy of i to the host begins; the computation is ordered after the copy of i - 1, whose memory on
//                the device is then released
//   restore(i)   the copy of i - 1 back to the device begins, so that it overlaps with block i's backward pass
// Besides the inputs of the block that runs, those of at most two blocks are on the device: the last saved ones, which
// are used as they are if their backward pass comes first, and the prefetched ones. Memory is released in the order of
// the computation's stream, so a host that runs ahead of the device does not need more of it. On the CPU, which tests
// use, copies are synchronous.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <memory>
#include <optional>
#include <vector>

namespace trireme::nn {

class ActivationOffload {
 public:
  explicit ActivationOffload(c10::Device device);

  /// The inputs of one block for one microbatch.
  struct Saved;
  /// Begins to move the floating-point tensors of `inputs` to host memory; the others, which are small, stay.
  [[nodiscard]] std::shared_ptr<Saved> save(const std::vector<at::Tensor>& inputs);
  /// The tensors of save(), with the same values and strides, on their device for later work of the current stream.
  /// Prefetches those that were saved before them. @throws UsageError when an input was changed after save()
  [[nodiscard]] std::vector<at::Tensor> restore(Saved& saved);

 private:
  void release_source(Saved& saved) const;
  void begin_restore(Saved& saved) const;

  c10::Device device_;
  std::optional<c10::Stream> to_host_, to_device_;  ///< unset on the CPU
  std::weak_ptr<Saved> last_;
};

}  // namespace trireme::nn
