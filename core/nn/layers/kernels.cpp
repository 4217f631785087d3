#include "core/nn/layers/kernels.h"

#include "core/nn/block.h"
#include "core/nn/layers/attention.h"

namespace trireme::nn {

void choose_attention(Model& model, AttentionKernel kernel) {
  for (auto* attention : layers_in<SelfAttention>(model)) attention->set_kernel(kernel);
}

void fuse_norms(Model& model, bool on) {
  for (auto* norm : layers_in<LayerNorm>(model)) norm->fuse(on);
}

void fuse_pointwise(Model& model, bool on) {
  for (auto* linear : layers_in<Linear>(model)) linear->fuse(on);
  for (auto* dropout : layers_in<Dropout>(model)) dropout->fuse(on);
}

void choose_kernels(Model& model, const Kernels& kernels) {
  choose_attention(model, kernels.attention);
  fuse_norms(model, kernels.norm);
  fuse_pointwise(model, kernels.pointwise);
}

KernelLayerCounts count_kernel_layers(Model& model) {
  KernelLayerCounts places;
  for (const auto* attention : layers_in<SelfAttention>(model)) {
    if (!attention->uses_kernel()) continue;
    ++places.attention;
    if (attention->dropout->p() > 0) ++places.attention_with_dropout;
  }
  places.norm = static_cast<int>(layers_in<LayerNorm>(model).size());
  for (const auto* linear : layers_in<Linear>(model))
    places.pointwise += linear->options().activation == Activation::gelu ? 1 : 0;
  for (const auto* dropout : layers_in<Dropout>(model)) places.dropout += dropout->p() > 0 ? 1 : 0;
  places.pointwise += places.dropout;
  return places;
}

}  // namespace trireme::nn
