// Linear and LayerNorm: y = x W^T + b over the last dim, and layer normalisation. Each can include the neighbouring
// step of a block (Linear the activation after it, LayerNorm the residual sum before it), so that both can run as one
// step (core/nn/layers/fused.h).
#pragma once

#include "core/nn/layers/activation.h"
#include "core/nn/layers/dropout.h"

namespace trireme::comm {
class Group;
}

namespace trireme::nn {

struct LoraAdapter;

/// weight [out, in], bias [out]; x [..., in] -> [..., out]: x W^T + b, or the activation of that.
class Linear : public Unary {
 public:
  struct Options {
    std::int64_t in, out;
    bool bias = true;
    double init_std = 0.02;  ///< weight: normal(0, init_std); bias: zeros
    bool uniform = false;    ///< in place of that: weight and bias uniform within 1 / sqrt(in), as torch.nn.Linear's
    /// A shard boundary must be a multiple of this many features, such as the size of a head.
    std::int64_t in_unit = 1, out_unit = 1;
    Activation activation = Activation::none;  ///< applied after the bias
    bool stored_transposed = false;            ///< files hold the weight as [in, out]: Hugging Face's Conv1D
    bool is_head = false;                      ///< forward() may return loss(); it has no activation
  };
  explicit Linear(const Options& options);
  [[nodiscard]] const Options& options() const { return options_; }
  /// With an activation: its input is dropped.
  [[nodiscard]] bool can_recompute() const override { return options_.activation != Activation::none; }

  /// For a policy that computes x W^T itself. Returns the bias that must be left to finish() for input `x`; if it is
  /// undefined, the policy adds the bias itself.
  [[nodiscard]] at::Tensor deferred_bias(const at::Tensor& x) const;
  /// Computes the output of forward() from the product, which it may overwrite. `deferred`: the bias that is still to
  /// be added, or undefined.
  [[nodiscard]] at::Tensor finish(at::Tensor product, const at::Tensor& deferred) const;
  /// For a head, loss_in_place_of_scores() of x; undefined for other layers, and with an adapter. `group`: the ranks
  /// that share the outputs.
  [[nodiscard]] at::Tensor loss(const at::Tensor& x, const Context& context, const comm::Group* group = nullptr) const;
  /// Whether bias and an exact GELU run as one step.
  void fuse(bool on) { fused_ = on; }

  /// Gives the layer a low-rank addition to its weight (core/nn/layers/lora.h), as children lora_A, lora_B and
  /// lora_dropout.
  void set_adapter(std::shared_ptr<const LoraAdapter> adapter);
  /// Null when the layer has none.
  [[nodiscard]] const LoraAdapter* adapter() const { return adapter_.get(); }
  [[nodiscard]] std::vector<Unary*> sharded_parts() const override;  ///< those of the adapter
  /// The product x W^T with what the adapter adds to it, if there is one. Goes before finish().
  [[nodiscard]] at::Tensor adapted(const at::Tensor& product, const at::Tensor& x, const Context& context) const;

  at::Tensor weight, bias;  ///< bias is undefined without one

 protected:
  at::Tensor compute(const at::Tensor& x, const Context& context) override;

 private:
  Options options_;
  bool fused_ = false;
  std::shared_ptr<const LoraAdapter> adapter_;
};

/// weight [size] starts as ones, bias [size] as zeros. Mean and variance are over the last dim.
class LayerNorm : public Unary {
 public:
  LayerNorm(std::int64_t size, double eps);

  struct OfSum {
    at::Tensor sum, norm;
  };
  /// sum = residual + dropout(x), and the norm of sum; in one step if fused.
  OfSum of_sum(const at::Tensor& residual, const at::Tensor& x, Dropout& dropout, const Context& context);
  void fuse(bool on) { fused_ = on; }

  at::Tensor weight, bias;

 protected:
  at::Tensor compute(const at::Tensor& x, const Context& context) override;

 private:
  std::int64_t size_;
  double eps_;
  bool fused_ = false;
};

}  // namespace trireme::nn
