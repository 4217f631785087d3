// GPT-2 (Radford et al., 2019) with its head over the vocabulary, equal to Hugging Face's GPT2LMHeadModel; parameters
// have the same names, and files hold the weights of attention and MLP transposed, as its Conv1D layers do. The head
// has no weights of its own.
//
// Blocks: "embed", "transformer.h.0", ..., "head". One tensor, hidden [B, N, H], passes between them.
// Inputs: input_ids int64 [B, N]. Side inputs, which the data may lack: attention_mask [B, N] (nonzero for tokens that
// count; all), position_ids [B, N] (0, 1, ...). Output: [B, N, V]. V token ids.
#pragma once

#include "core/nn/block.h"
#include "core/nn/policy.h"
#include "models/gpt2/options.h"

namespace trireme::models::gpt2 {

class Gpt2 : public nn::Model {
 public:
  /// @pre resolved options
  explicit Gpt2(const Options& options);
  [[nodiscard]] std::vector<std::string> input_names() const override { return {"input_ids"}; }
  [[nodiscard]] std::vector<std::string> side_input_names() const override {
    return {"attention_mask", "position_ids"};
  }
  [[nodiscard]] bool releases_outputs() const override { return true; }
  [[nodiscard]] std::int64_t tokens(const nn::Tensors& inputs) const override { return inputs.at(0).size(1); }
  [[nodiscard]] std::vector<nn::RedundantTensor> redundant_tensors() const override;
};

/// How tensor and sequence parallelism shard the layers.
nn::Policy policy();

}  // namespace trireme::models::gpt2
