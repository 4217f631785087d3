#include "core/nn/layers/gated_linear.h"

#include <ATen/TensorOperators.h>

#include "core/nn/layers/gated_step.h"

namespace trireme::nn {

GatedLinear::GatedLinear(const Options& o)
    : projections([&] {
        const Linear::Options each{.in = o.in, .out = o.out, .bias = o.bias, .init_std = o.init_std};
        return std::vector<std::shared_ptr<Linear>>{register_module(o.gate, std::make_shared<Linear>(each)),
                                                    register_module(o.up, std::make_shared<Linear>(each))};
      }()),
      activation_(o.activation) {}

at::Tensor GatedLinear::compute(const at::Tensor& x, const Context& context) {
  const auto parts = projections.forward(x, context, 0);
  if (activation_ == Activation::silu) return silu_product(parts[0], parts[1]);
  return activate(parts[0], activation_) * parts[1];
}

}  // namespace trireme::nn
