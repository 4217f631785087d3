#include "core/nn/layers/activation.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/tanh.h>

#include <utility>

#include "core/base/error.h"
#include "core/base/text.h"

namespace trireme::nn {

at::Tensor activate(const at::Tensor& x, Activation by) {
  switch (by) {
    case Activation::gelu:
      return at::gelu(x);
    case Activation::gelu_tanh:
      return at::gelu(x, "tanh");
    case Activation::relu:
      return at::relu(x);
    case Activation::silu:
      return at::silu(x);
    case Activation::tanh:
      return at::tanh(x);
    case Activation::none:
      break;
  }
  return x;
}

Activation activation_of(const std::string& name) {
  static const std::pair<const char*, Activation> known[]{
      {"gelu", Activation::gelu}, {"gelu_new", Activation::gelu_tanh}, {"gelu_pytorch_tanh", Activation::gelu_tanh},
      {"relu", Activation::relu}, {"silu", Activation::silu},          {"swish", Activation::silu},
      {"tanh", Activation::tanh}};
  std::vector<std::string> names;
  for (const auto& [each, activation] : known) {
    if (name == each) return activation;
    names.emplace_back(each);
  }
  throw ConfigError(fmt::format("no activation function \"{}\" (known: {})", name, text::join(names)));
}

}  // namespace trireme::nn
