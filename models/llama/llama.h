// Llama (Touvron et al., 2023) with its head over the vocabulary, equal to Hugging Face's LlamaForCausalLM; parameters
// have the same names. A tied head has none of its own. With Options::query_key_norm it is Qwen3ForCausalLM.
//
// Blocks: "embed", "model.layers.0", ..., "head" (models/decoder.h).
#pragma once

#include "core/nn/policy.h"
#include "models/decoder.h"
#include "models/llama/options.h"

namespace trireme::models::llama {

class Llama : public Decoder {
 public:
  /// @pre resolved options
  explicit Llama(const Options& options);
  [[nodiscard]] std::vector<nn::RedundantTensor> redundant_tensors() const override;

 private:
  bool tied_;
};

/// How tensor and sequence parallelism shard the layers.
nn::Policy policy(bool tied);

}  // namespace trireme::models::llama
