// The gated product silu(gate) * up, as an autograd function over operators of our own, "trireme::gate" and
// "trireme::gate_backward": on a GPU one kernel for each pass, elsewhere LibTorch's operators. The graph keeps gate and
// up alone; silu(gate) is computed again.
#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>

namespace trireme::nn {

/// silu(gate) * up. Both have one shape, dtype and device.
at::Tensor silu_product(const at::Tensor& gate, const at::Tensor& up);

// The operators by those of LibTorch.
at::Tensor gate_by_operators(const at::Tensor& gate, const at::Tensor& up);
/// The gradients of gate and up.
std::tuple<at::Tensor, at::Tensor> gate_backward_by_operators(const at::Tensor& gradient, const at::Tensor& gate,
                                                              const at::Tensor& up);

}  // namespace trireme::nn
