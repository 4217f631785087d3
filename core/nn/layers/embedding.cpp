#include "core/nn/layers/embedding.h"

#include <ATen/ops/embedding.h>
#include <ATen/ops/linear.h>

#include <utility>

#include "core/base/error.h"
#include "core/nn/layers/index_checks.h"
#include "core/nn/layers/linear_cross_entropy.h"

namespace trireme::nn {

Embedding::Embedding(const Options& options)
    : scores([this](const at::Tensor& x, const Context& context, const at::Tensor& bias) {
        const auto loss = loss_in_place_of_scores({x, weight, bias, options_.vocabulary}, context);
        return loss.defined() ? loss : at::linear(x, weight, bias);
      }),
      options_(options) {
  TRIREME_REQUIRE(options.vocabulary >= 1 && options.features >= 1,
                  "an embedding needs a vocabulary and features of at least 1, not {} and {}", options.vocabulary,
                  options.features);
  declare("weight", weight, {options.vocabulary, options.features}, Init::normal(0, options.init_std));
}

at::Tensor Embedding::compute(const at::Tensor& token_ids, const Context&) {
  if (token_ids.is_cpu()) check_token_ids(token_ids, options_.vocabulary);  // for the same reason as in criterion.cpp
  return at::embedding(weight, token_ids, options_.padding_id);
}

TiedHead::TiedHead(std::shared_ptr<Embedding> embedding) : embedding_(std::move(embedding)) {
  declare("bias", bias, {embedding_->options().vocabulary}, Init::zeros());
}

at::Tensor TiedHead::compute(const at::Tensor& x, const Context& context) {
  return embedding_->scores(x, context, bias);
}

}  // namespace trireme::nn
