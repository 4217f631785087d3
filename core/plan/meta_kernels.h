// MetaKernels: lets operators run on the meta device for which LibTorch has kernels there only in Python, as the
// planned device's kernels run (core/base/planned_device.h): the same results, and the same memory.
#pragma once

#include <torch/library.h>

namespace trireme::plan {

/// While it lives, all operators of a training step compute shapes on the meta device. Attention takes the kernel that
/// the planned device would take, the CPU's where none is planned. The operators of transformers, convolutional
/// networks and optimizers have rules here, which hold the work buffers of the CPU's kernels too; any other operator
/// without a kernel for the meta device runs on the CPU, with zeros in place of the tensors without values, and its
/// results are again tensors without values. Autocast casts tensors as on the planned device.
/// For the whole process; only one at a time.
class MetaKernels {
 public:
  MetaKernels();

 private:
  torch::Library library_, with_gradients_, autocast_;
};

}  // namespace trireme::plan
