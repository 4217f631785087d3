// GPT-2 (Radford et al., 2019) with its head over the vocabulary, equal to Hugging Face's GPT2LMHeadModel; parameters
// have the same names, and files hold the weights of attention and MLP transposed, as its Conv1D layers do. The head
// has no weights of its own.
//
// Blocks: "embed", "transformer.h.0", ..., "head" (models/decoder.h).
#pragma once

#include "core/nn/policy.h"
#include "models/decoder.h"
#include "models/gpt2/options.h"

namespace trireme::models::gpt2 {

class Gpt2 : public Decoder {
 public:
  /// @pre resolved options
  explicit Gpt2(const Options& options);
  [[nodiscard]] std::vector<nn::RedundantTensor> redundant_tensors() const override;
};

/// How tensor and sequence parallelism shard the layers.
nn::Policy policy();

}  // namespace trireme::models::gpt2
