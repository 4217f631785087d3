// GatedLinear: activation(x G^T) * (x U^T), the first half of a gated MLP; SwiGLU with SiLU. Shazeer, "GLU Variants
// Improve Transformer", 2020.
#pragma once

#include <string>

#include "core/nn/layers/linear_group.h"

namespace trireme::nn {

/// x [..., in] -> [..., out]. Its two children have the names that the options give.
class GatedLinear : public Unary {
 public:
  struct Options {
    std::int64_t in, out;
    bool bias = false;
    double init_std = 0.02;
    Activation activation = Activation::silu;
    std::string gate = "gate_proj", up = "up_proj";
  };
  explicit GatedLinear(const Options& options);

  [[nodiscard]] bool can_recompute() const override { return true; }
  [[nodiscard]] std::vector<Unary*> sharded_parts() const override { return projections.layers(); }

  LinearGroup projections;  ///< gate and up

 protected:
  /// Without those of children that a model has added.
  [[nodiscard]] std::vector<at::Tensor> forward_parameters() const override { return projections.parameters(); }
  at::Tensor compute(const at::Tensor& x, const Context& context) override;

 private:
  Activation activation_;
};

}  // namespace trireme::nn
