// BERT (Devlin et al., 2018) with its heads for masked tokens, for samples and for tokens, equal to Hugging Face's
// models; parameters have the same names.
//
// Blocks: "bert.embeddings", "bert.encoder.layer.0", ..., "head". One tensor, hidden [B, N, H], passes between them.
// Inputs: input_ids int64 [B, N]. Side inputs, which the data may lack: attention_mask [B, N] (nonzero for tokens that
// count; all), token_type_ids [B, N] (0), position_ids [B, N] (0, 1, ...).
// Outputs: [B, N, V] (masked_lm), [B, K] (sequence) or [B, N, K] (token). V token ids, K classes.
#pragma once

#include "core/nn/block.h"
#include "core/nn/policy.h"
#include "models/bert/options.h"

namespace trireme::models::bert {

class Bert : public nn::Model {
 public:
  /// @pre resolved options
  explicit Bert(const Options& options);
  [[nodiscard]] std::vector<std::string> input_names() const override { return {"input_ids"}; }
  [[nodiscard]] std::vector<std::string> side_input_names() const override {
    return {"attention_mask", "token_type_ids", "position_ids"};
  }
  [[nodiscard]] bool releases_outputs() const override { return true; }
  [[nodiscard]] std::int64_t tokens(const nn::Tensors& inputs) const override { return inputs.at(0).size(1); }
  [[nodiscard]] std::vector<nn::RedundantTensor> redundant_tensors() const override;

 private:
  Head head_;
};

/// How tensor and sequence parallelism shard the layers.
nn::Policy policy(Head head);

}  // namespace trireme::models::bert
