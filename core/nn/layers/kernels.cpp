#include "core/nn/layers/kernels.h"

#include "core/nn/block.h"
#include "core/nn/layers/attention.h"

namespace trireme::nn {

void choose_kernels(Model& model, const Kernels& kernels) {
  model.apply([&](torch::nn::Module& module) {
    if (auto* attention = dynamic_cast<SelfAttention*>(&module)) attention->set_kernel(kernels.attention);
    if (auto* norm = dynamic_cast<LayerNorm*>(&module)) norm->fuse(kernels.norm);
    if (auto* linear = dynamic_cast<Linear*>(&module)) linear->fuse(kernels.pointwise);
    if (auto* dropout = dynamic_cast<Dropout*>(&module)) dropout->fuse(kernels.pointwise);
  });
}

KernelLayerCounts count_kernel_layers(Model& model) {
  KernelLayerCounts places;
  model.apply([&](torch::nn::Module& module) {
    if (const auto* attention = dynamic_cast<SelfAttention*>(&module)) {
      if (!attention->uses_kernel()) return;
      ++places.attention;
      if (attention->dropout->p() > 0) ++places.attention_with_dropout;
    }
    if (dynamic_cast<LayerNorm*>(&module) != nullptr) ++places.norm;
    if (const auto* linear = dynamic_cast<Linear*>(&module))
      places.pointwise += linear->options().activation == Activation::gelu ? 1 : 0;
    if (const auto* dropout = dynamic_cast<Dropout*>(&module)) places.dropout += dropout->p() > 0 ? 1 : 0;
  });
  places.pointwise += places.dropout;
  return places;
}

}  // namespace trireme::nn
