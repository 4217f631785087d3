// LinearGroup: several outputs of one input, such as query, key and value, or the two halves of a gated MLP; each by a
// Linear layer of its own, or all by one (fused). Tensor parallelism shards them together: the input is gathered once,
// and its gradients are summed once.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/nn/layers/linear.h"

namespace trireme::nn {

class LinearGroup {
 public:
  /// An output for each layer.
  explicit LinearGroup(std::vector<std::shared_ptr<Linear>> layers);
  /// One layer, whose features are those of the outputs, one output after the other. `sizes`: features of each.
  LinearGroup(std::shared_ptr<Linear> layer, std::vector<std::int64_t> sizes);
  [[nodiscard]] const std::vector<std::shared_ptr<Linear>>& parts() const { return parts_; }
  [[nodiscard]] std::vector<Unary*> layers() const;  ///< the same
  /// Whether one layer has all outputs.
  [[nodiscard]] bool fused() const { return sizes_.size() > parts_.size(); }

  /// x [B, ..., in] -> each output. If `leading` is not 0, the first output is computed from the first `leading` tokens
  /// of x [B, N, in] only.
  Replaceable<std::vector<at::Tensor>(const at::Tensor& x, const Context& context, std::int64_t leading)> forward;

  /// Shards each output's features: this rank holds rows[i] of output i, and the other ranks along mesh axis `axis`
  /// hold the rest. @pre as Layer::cut()
  void cut(const std::vector<shard::Range>& rows, const std::string& axis);
  struct Weights {
    at::Tensor weight, bias;  ///< [features that this rank holds, in], [features that this rank holds] or undefined
  };
  /// The local weight and bias of each output.
  [[nodiscard]] std::vector<Weights> weights() const;
  [[nodiscard]] std::vector<at::Tensor> parameters() const;
  /// The adapter of each output's layer, and the rows of B for the output that this rank holds.
  struct OutputAdapter {
    const LoraAdapter* of = nullptr;  ///< null when the layer has none
    at::Tensor weight;                ///< [features that this rank holds, r]
  };
  [[nodiscard]] std::vector<OutputAdapter> adapters() const;
  /// Splits y [..., local features of all outputs] along its last dim into one tensor for each output.
  [[nodiscard]] std::vector<at::Tensor> split(const at::Tensor& y) const;

 private:
  [[nodiscard]] std::vector<at::Tensor> compute(const at::Tensor& x, const Context& context,
                                                std::int64_t leading) const;

  std::vector<std::shared_ptr<Linear>> parts_;
  std::vector<std::int64_t> sizes_;  ///< the features of each output that this rank holds
};

}  // namespace trireme::nn
