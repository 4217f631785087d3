// NextToken: the scores of the token that follows a text, while the text grows. The keys and values of the tokens so
// far are cached, so that each token costs a forward pass over itself alone. Pope et al., "Efficiently Scaling
// Transformer Inference", 2022, section 2. Shapes: one sample, K key-value heads, N tokens, d features, V ids.
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

  /// Changes how the model's attention layers attend, if they can use a cache: each is causal, positions are an input
  /// ("position_ids") of the model, and angles do not depend on the length of the text. Otherwise each token costs a
  /// forward pass over the whole text. The model must not be used for anything else.
  NextToken(nn::Model& model, Forward forward);

  /// The scores of the token that follows these ids. The cache serves as long as each text is the one before and one
  /// more token. The first token that it serves is computed without it, too: if the scores differ by more than
  /// rounding, because layers of the model's own mix tokens, nothing is cached from then on.
  at::Tensor operator()(const std::vector<std::int64_t>& ids);
  [[nodiscard]] bool uses_cache() const { return cache_ != nullptr; }

 private:
  struct Cache;

  Forward forward_;
  std::shared_ptr<Cache> cache_;   ///< null: none
  std::vector<std::int64_t> ids_;  ///< the tokens that are cached
  bool is_checked_ = false;
};

}  // namespace trireme::train
