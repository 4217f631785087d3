// How the frequencies of rotary positions are changed for samples that are longer than those of the first training. The
// types, their parameters and the arithmetic are those of transformers (modeling_rope_utils.py):
//
//   linear   all frequencies are divided by `factor` (Chen et al., "Position Interpolation", 2023)
//   dynamic  in samples of more tokens than original_positions, the base of the angles grows with their number ("NTK")
//   yarn     low frequencies are divided, high ones are kept, and the scores are scaled (Peng et al., "YaRN", 2023)
//   llama3   the same by wavelengths, without a scale (Llama 3.1)
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>

namespace trireme::nn {

struct RotaryScaling {
  std::string type = "default";                    ///< "default": unchanged
  std::optional<double> factor;                    ///< set unless the type is "default"
  std::optional<std::int64_t> original_positions;  ///< the tokens of a sample in the first training; set as `factor` is
  std::optional<double> low_freq_factor, high_freq_factor;                               ///< of llama3: set
  std::optional<double> attention_factor, beta_fast, beta_slow, mscale, mscale_all_dim;  ///< of yarn
  std::optional<bool> truncate;                                                          ///< of yarn; true
};

/// The angle of each pair of features between two neighbouring positions, [head_size / 2], in samples of `tokens`
/// tokens. `options`: of the result.
at::Tensor rotary_frequencies(const RotaryScaling& scaling, std::int64_t head_size, double theta, std::int64_t tokens,
                              const at::TensorOptions& options);

/// By what cosines and sines are multiplied.
double rotary_amplitude(const RotaryScaling& scaling);

}  // namespace trireme::nn
