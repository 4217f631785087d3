// Which way the layers of a model compute what can be computed in several ways, all with the same numbers but for
// rounding: a choice of speed and memory.
#pragma once

namespace trireme::nn {

class Model;

struct Kernels {
  bool attention = true;  ///< LibTorch's fused kernels where it has one (core/nn/attention.h); false: scores are formed
  bool norm = false;      ///< LayerNorm::of_sum() is one step
  bool pointwise = false;  ///< bias and GELU of a Linear are one step, as are a Dropout and the sum behind it
};
/// Sets every layer of the model that has such a choice.
void choose_kernels(Model& model, const Kernels& kernels);

/// How many layers have each choice.
struct KernelPlaces {
  int attention = 0, norm = 0, pointwise = 0;
  int dropout = 0;  ///< of the pointwise ones, those that are a dropout
  int attention_with_dropout = 0;
};
KernelPlaces kernel_places(Model& model);

}  // namespace trireme::nn
