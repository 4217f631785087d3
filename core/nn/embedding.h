// Embedding: a table with one vector for each token id of a vocabulary. A language model's head can use the same table
// to score every token id. Press and Wolf, "Using the Output Embedding to Improve Language Models", 2017.
#pragma once

#include <cstdint>

#include "core/nn/layer.h"

namespace trireme::nn {

/// token ids int64 [...] -> [..., features].
class Embedding : public Unary {
 public:
  struct Options {
    std::int64_t vocabulary, features;
    double init_std = 0.02;  ///< weight: normal(0, init_std)
  };
  explicit Embedding(const Options& options);
  [[nodiscard]] const Options& options() const { return options_; }

  /// x [..., features] -> [..., vocabulary]: the dot product with each token id's vector. A head that uses this has its
  /// weights tied to the embedding's.
  at::Tensor scores(const at::Tensor& x, const Context& context);
  void set_scores(Forward replacement) { scores_ = std::move(replacement); }

  at::Tensor weight;  ///< [vocabulary, features]

 protected:
  at::Tensor compute(const at::Tensor& token_ids, const Context& context) override;

 private:
  Options options_;
  Forward scores_;
};

}  // namespace trireme::nn
