#include "core/nn/layers/attention_dropout.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/stack.h>

#include <vector>

#include "core/base/error.h"

namespace trireme::nn {
namespace {

/// More than any sample's tokens and any layer's heads.
constexpr std::int64_t kMostTokens = 1 << 20, kMostHeads = 1 << 16;

/// Each head is drawn like a sample of its own, whose element is query * kMostTokens + key.
at::Tensor mask_of_positions(const Dropout& dropout, Context context, const at::Tensor& probabilities,
                             const ProbabilitySlice& slice) {
  TRIREME_REQUIRE(slice.tokens <= kMostTokens, "dropout \"{}\": {} tokens of padded samples are more than {}",
                  dropout.path(), slice.tokens, kMostTokens);
  const auto heads =
      at::arange(slice.first_head, slice.first_head + probabilities.size(1), context.sample_ids.options());
  context.sample_ids = (context.sample_ids.unsqueeze(1) * kMostHeads + heads).flatten();
  return dropout.mask(context,
                      {.count = slice.queries.size() * slice.keys.size(),
                       .offset = slice.queries.begin * kMostTokens + slice.keys.begin,
                       .row = slice.keys.size(),
                       .stride = kMostTokens},
                      probabilities.device());
}

/// The rows of several heads have no common distance where the rank holds only some of the queries.
at::Tensor mask_by_head(const Dropout& dropout, const Context& context, const at::Tensor& probabilities,
                        const ProbabilitySlice& slice) {
  std::vector<at::Tensor> heads;
  for (std::int64_t h = slice.first_head; h < slice.first_head + probabilities.size(1); ++h)
    heads.push_back(
        dropout.mask(context,
                     {.count = slice.queries.size() * slice.keys.size(),
                      .offset = (h * slice.query_tokens + slice.queries.begin) * slice.tokens + slice.keys.begin,
                      .row = slice.keys.size(),
                      .stride = slice.tokens},
                     probabilities.device()));
  return at::stack(heads, 1);
}

}  // namespace

at::Tensor probability_mask(const Dropout& dropout, const Context& context, const at::Tensor& probabilities,
                            const ProbabilitySlice& slice) {
  dropout.check_samples(context, probabilities.size(0));
  if (slice.padded) return mask_of_positions(dropout, context, probabilities, slice).view(probabilities.sizes());
  if (slice.queries.size() != slice.query_tokens || slice.keys.size() != slice.tokens)
    return mask_by_head(dropout, context, probabilities, slice).view(probabilities.sizes());
  const auto of_head = slice.query_tokens * slice.tokens, count = probabilities.size(1) * of_head;
  return dropout
      .mask(context, {.count = count, .offset = slice.first_head * of_head, .row = count}, probabilities.device())
      .view(probabilities.sizes());
}

}  // namespace trireme::nn
