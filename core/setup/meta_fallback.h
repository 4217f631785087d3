// MetaFallback: lets operators run on the meta device for which LibTorch has kernels there only in Python.
#pragma once

#include <torch/library.h>

namespace trireme::train {

/// While it lives, an operator without a kernel for the meta device runs on the CPU, with zeros in place of the tensors
/// without values, and its results are again tensors without values. For the whole process; only one at a time.
class MetaFallback {
 public:
  MetaFallback();

 private:
  torch::Library library_;
};

}  // namespace trireme::train
