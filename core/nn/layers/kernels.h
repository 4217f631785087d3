// The choice between several implementations of the same computation in a model's layers. Results are equal up to
// rounding; speed and memory differ.
#pragma once

namespace trireme::nn {

class Model;

/// How attention is computed. fastest: LibTorch's choice for the inputs, and materialized scores where it has no fused
/// kernel; math: materialized scores; else LibTorch's kernel of this name, and an error where it does not apply.
enum class AttentionKernel { fastest, flash, memory_efficient, cudnn, math };

struct Kernels {
  AttentionKernel attention = AttentionKernel::fastest;
  bool norm = false;       ///< LayerNorm::of_sum() runs as one step
  bool pointwise = false;  ///< bias and GELU of a Linear run as one step, as do a Dropout and the sum after it
};
/// Applies the choice to every layer of the model that has one.
void choose_kernels(Model& model, const Kernels& kernels);
/// Its parts.
void choose_attention(Model& model, AttentionKernel kernel);
void fuse_norms(Model& model, bool on);
void fuse_pointwise(Model& model, bool on);

/// The number of layers to which each choice applies.
struct KernelLayerCounts {
  int attention = 0;  ///< without layers whose attention is replaced by one that uses none of these kernels
  int norm = 0, pointwise = 0;
  int dropout = 0;  ///< the dropouts among the pointwise ones
  int attention_with_dropout = 0;
};
KernelLayerCounts count_kernel_layers(Model& model);

}  // namespace trireme::nn
