// The choice between several implementations of the same computation in a model's layers. Results are equal up to
// rounding; speed and memory differ.
#pragma once

namespace trireme::nn {

class Model;

struct Kernels {
  bool attention = true;   ///< LibTorch's fused kernels if available (core/nn/attention.h); false: scores are stored
  bool norm = false;       ///< LayerNorm::of_sum() runs as one step
  bool pointwise = false;  ///< bias and GELU of a Linear run as one step, as do a Dropout and the sum after it
};
/// Applies the choice to every layer of the model that has one.
void choose_kernels(Model& model, const Kernels& kernels);

/// The number of layers to which each choice applies.
struct KernelPlaces {
  int attention = 0, norm = 0, pointwise = 0;
  int dropout = 0;  ///< the dropouts among the pointwise ones
  int attention_with_dropout = 0;
};
KernelPlaces kernel_places(Model& model);

}  // namespace trireme::nn
