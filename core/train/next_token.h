// NextToken: the scores of the token that follows a text, while the text grows. What the attention layers have computed
// of the tokens so far is kept, so that each token costs a forward pass over itself alone. Pope et al., "Efficiently
// Scaling Transformer Inference", 2022, section 2. Shapes: one sample, K key-value heads, N tokens, d features, V ids.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "core/nn/block.h"

namespace trireme::train {

class NextToken {
 public:
  /// A forward pass over tokens of the model, the first of which is at position `first`: the scores after the last,
  /// [V].
  using Forward = std::function<at::Tensor(const std::vector<std::int64_t>& ids, std::int64_t first)>;

  /// Changes how the model's attention layers attend, if it can keep keys and values: each is causal, positions are an
  /// input ("position_ids") of the model, and angles do not depend on the length of the text. Otherwise each token
  /// costs a forward pass over the whole text. The model must not compute anything else.
  NextToken(nn::Model& model, Forward forward);

  /// The scores of the token that follows these ids. Keys and values are kept as long as each text is the one before
  /// and one more token. A model that computes something else with them, because its own layers mix tokens, too, is
  /// found at its first such token, and then computes without.
  at::Tensor operator()(const std::vector<std::int64_t>& ids);
  [[nodiscard]] bool keeps() const { return kept_ != nullptr; }

 private:
  struct Kept;

  Forward forward_;
  std::shared_ptr<Kept> kept_;     ///< null: nothing is kept
  std::vector<std::int64_t> ids_;  ///< of which keys and values are kept
  bool is_checked_ = false;
};

}  // namespace trireme::train
