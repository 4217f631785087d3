// Embedding: a table with a vector for each word of a vocabulary; and the same table read the other way, as a head that
// scores every word. Press and Wolf, "Using the Output Embedding to Improve Language Models", 2017.
#pragma once

#include <cstdint>

#include "core/nn/layer.h"

namespace trireme::nn {

/// words int64 [...] -> [..., features].
class Embedding : public Unary {
 public:
  struct Options {
    std::int64_t vocabulary, features;
    double init_std = 0.02;  ///< weight: normal(0, init_std)
  };
  explicit Embedding(const Options& options);
  [[nodiscard]] const Options& options() const { return options_; }

  /// x [..., features] -> [..., vocabulary]: a product with each word's vector. Where a head uses this, its weights are
  /// tied to the embedding's.
  at::Tensor scores(const at::Tensor& x, const Context& context);
  void score_by(Forward instead) { score_ = std::move(instead); }

  at::Tensor weight;  ///< [vocabulary, features]

 protected:
  at::Tensor compute(const at::Tensor& words, const Context& context) override;

 private:
  Options options_;
  Forward score_;
};

}  // namespace trireme::nn
