#include "core/nn/linear.h"

#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>

namespace trireme::nn {

Linear::Linear(const Options& options) {
  declare("weight", weight, {options.out, options.in}, Init::normal(0, options.init_std));
  if (options.bias) declare("bias", bias, {options.out}, Init::zeros());
}

at::Tensor Linear::forward(const at::Tensor& x, const Context&) { return at::linear(x, weight, bias); }

LayerNorm::LayerNorm(std::int64_t size, double eps) : size_(size), eps_(eps) {
  declare("weight", weight, {size}, Init::ones());
  declare("bias", bias, {size}, Init::zeros());
}

at::Tensor LayerNorm::forward(const at::Tensor& x, const Context&) {
  return at::layer_norm(x, {size_}, weight, bias, eps_);
}

}  // namespace trireme::nn
