// NextToken: the scores of the token that follows each of several texts, while the texts grow. The keys and values of
// the tokens so far are cached, so that each token costs a forward pass over itself alone. Pope et al., "Efficiently
// Scaling Transformer Inference", 2022, section 2. Shapes: B texts, K key-value heads, N tokens, d features, V ids.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "core/nn/block.h"

namespace trireme::train {

/// The token ids of each text.
using Texts = std::vector<std::vector<std::int64_t>>;

class NextToken {
 public:
  /// What a forward pass reads, on the CPU.
  struct Pass {
    at::Tensor ids{};        ///< int64 [B, N]; zeros behind the end of a text that is shorter than others
    at::Tensor positions{};  ///< int64 [B, N]; undefined: 0, 1, ...
    at::Tensor last{};       ///< int64 [B]: the index in N of each text's last token
  };
  /// The scores after the last token of each text, [B, V].
  using Forward = std::function<at::Tensor(const Pass& pass)>;

  /// Changes how the model's attention layers attend, if they can use a cache: each is causal, positions are an input
  /// ("position_ids") of the model, and angles do not depend on the length of the text. Otherwise each token costs a
  /// forward pass over the whole text. The model must not be used for anything else.
  NextToken(nn::Model& model, Forward forward);

  /// The scores of the token that follows each text, [B, V]. The cache serves as long as each text is the one before
  /// with one more token, or as it was. The first tokens that it serves, and those before of several texts, are
  /// computed without it, too: if the scores differ by more than rounding, because layers of the model's own mix
  /// tokens, nothing is cached from then on, and each text costs a pass of its own.
  at::Tensor operator()(const Texts& texts);
  [[nodiscard]] bool uses_cache() const { return cache_ != nullptr; }

 private:
  struct Cache;

  /// One text after the other.
  [[nodiscard]] at::Tensor without_cache(const Texts& texts) const;

  Forward forward_;
  std::shared_ptr<Cache> cache_;  ///< null: none
  Texts texts_;                   ///< those that are cached
  bool is_checked_ = false;
};

}  // namespace trireme::train
