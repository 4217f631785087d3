#include "core/nn/layers/gated_linear.h"

#include <ATen/TensorOperators.h>

namespace trireme::nn {

GatedLinear::GatedLinear(const Options& o)
    : projections(std::vector<std::shared_ptr<Linear>>{
          register_module(
              o.gate,
              std::make_shared<Linear>(Linear::Options{
                  .in = o.in, .out = o.out, .bias = o.bias, .init_std = o.init_std, .activation = o.activation})),
          register_module(o.up, std::make_shared<Linear>(Linear::Options{
                                    .in = o.in, .out = o.out, .bias = o.bias, .init_std = o.init_std}))}) {}

at::Tensor GatedLinear::compute(const at::Tensor& x, const Context& context) {
  const auto parts = projections.forward(x, context, 0);
  return parts[0] * parts[1];
}

}  // namespace trireme::nn
