#include "core/nn/embedding.h"

#include <ATen/ops/embedding.h>
#include <ATen/ops/linear.h>

#include "core/base/error.h"
#include "core/nn/index_checks.h"

namespace trireme::nn {

Embedding::Embedding(const Options& options) : options_(options) {
  TRIREME_REQUIRE(options.vocabulary >= 1 && options.features >= 1,
                  "an embedding needs a vocabulary and features of at least 1, not {} and {}", options.vocabulary,
                  options.features);
  declare("weight", weight, {options.vocabulary, options.features}, Init::normal(0, options.init_std));
}

at::Tensor Embedding::compute(const at::Tensor& token_ids, const Context&) {
  if (token_ids.is_cpu()) check_token_ids(token_ids, options_.vocabulary);  // for the same reason as in criterion.cpp
  return at::embedding(weight, token_ids);
}

at::Tensor Embedding::scores(const at::Tensor& x, const Context& context) {
  return scores_ ? scores_(x, context) : at::linear(x, weight);
}

}  // namespace trireme::nn
