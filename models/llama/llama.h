// Llama (Touvron et al., 2023) with its head over the vocabulary, equal to Hugging Face's LlamaForCausalLM; parameters
// have the same names. A tied head has none of its own.
//
// Blocks: "embed", "model.layers.0", ..., "head". One tensor, hidden [B, N, H], passes between them.
// Inputs: input_ids int64 [B, N]. Side inputs, which the data may lack: attention_mask [B, N] (nonzero for tokens that
// count; all), position_ids [B, N] (0, 1, ...). Output: [B, N, V]. V token ids.
#pragma once

#include "core/nn/block.h"
#include "core/nn/policy.h"
#include "models/llama/options.h"

namespace trireme::models::llama {

class Llama : public nn::Model {
 public:
  /// @pre resolved options
  explicit Llama(const Options& options);
  [[nodiscard]] std::vector<std::string> input_names() const override { return {"input_ids"}; }
  [[nodiscard]] std::vector<std::string> side_input_names() const override {
    return {"attention_mask", "position_ids"};
  }
  [[nodiscard]] bool releases_outputs() const override { return true; }
  [[nodiscard]] std::int64_t tokens(const nn::Tensors& inputs) const override { return inputs.at(0).size(1); }
  [[nodiscard]] std::vector<nn::RedundantTensor> redundant_tensors() const override;

 private:
  bool tied_;
};

/// How tensor and sequence parallelism shard the layers.
nn::Policy policy(bool tied);

}  // namespace trireme::models::llama
