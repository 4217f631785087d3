// SumsOverRanks: a base of layers whose results depend on the samples of all ranks, such as a synchronised BatchNorm.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <functional>

namespace trireme::nn {

class SumsOverRanks {
 public:
  virtual ~SumsOverRanks() = default;
  /// Whether the layer, with its options, needs the sums in training.
  [[nodiscard]] virtual bool needs_sums() const { return true; }
  /// Sums a tensor in place over the ranks whose batches are one batch. The Booster sets it for a layer that needs it;
  /// empty on a rank alone.
  using Sum = std::function<void(at::Tensor values)>;
  Sum sum_over_ranks{};
};

/// The module as a layer that needs the sums; null when it is none.
inline SumsOverRanks* summing_layer(torch::nn::Module& module) {
  auto* layer = dynamic_cast<SumsOverRanks*>(&module);
  return layer != nullptr && layer->needs_sums() ? layer : nullptr;
}

}  // namespace trireme::nn
