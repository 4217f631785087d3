// Activation functions by the names that Hugging Face's configurations have for them.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace trireme::nn {

enum class Activation {
  none,
  gelu,       ///< exact, with erf
  gelu_tanh,  ///< the tanh approximation: "gelu_new", "gelu_pytorch_tanh"
  relu,
  silu,
  tanh,
};

at::Tensor activate(const at::Tensor& x, Activation by);
/// The activation of a hidden_act: "gelu", "gelu_new", "silu". @throws ConfigError that lists the known names
Activation activation_of(const std::string& name);

}  // namespace trireme::nn
