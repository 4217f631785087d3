// Embedding: a table with one vector for each token id of a vocabulary. A language model's head can use the same table
// to score every token id. Press and Wolf, "Using the Output Embedding to Improve Language Models", 2017.
#pragma once

#include <cstdint>
#include <memory>

#include "core/nn/layer.h"

namespace trireme::nn {

/// token ids int64 [...] -> [..., features].
class Embedding : public Unary {
 public:
  struct Options {
    std::int64_t vocabulary, features;
    double init_std = 0.02;        ///< weight: normal(0, init_std)
    std::int64_t padding_id = -1;  ///< a token id that gives its vector no gradient; -1: there is none
  };
  explicit Embedding(const Options& options);
  [[nodiscard]] const Options& options() const { return options_; }

  /// x [..., features] -> [..., vocabulary]: the dot product with each token id's vector. A head that uses this has its
  /// weights tied to the embedding's. In place of the scores it may return their loss (loss_in_place_of_scores()).
  /// `bias`: [vocabulary], or the part of this rank; may be undefined.
  Replaceable<at::Tensor(const at::Tensor& x, const Context& context, const at::Tensor& bias)> scores;

  at::Tensor weight;  ///< [vocabulary, features]

 protected:
  at::Tensor compute(const at::Tensor& token_ids, const Context& context) override;

 private:
  Options options_;
};

/// Scores by an embedding's vectors, with a bias [vocabulary] of its own, zeros at first: x [..., features] -> [...,
/// vocabulary]. A block that has it must have the embedding too.
class TiedHead : public Unary {
 public:
  explicit TiedHead(std::shared_ptr<Embedding> embedding);
  [[nodiscard]] const Embedding& embedding() const { return *embedding_; }

  at::Tensor bias;

 protected:
  at::Tensor compute(const at::Tensor& x, const Context& context) override;

 private:
  std::shared_ptr<Embedding> embedding_;
};

}  // namespace trireme::nn
