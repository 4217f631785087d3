#include "core/train/next_token.h"

#include <ATen/Context.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/isfinite.h>

#include <algorithm>
#include <string>
#include <utility>

#include "core/nn/layers/attention.h"

namespace trireme::train {
namespace {

bool can_cache(nn::Model& model, const std::vector<nn::SelfAttention*>& layers) {
  const auto inputs = model.side_input_names();
  return !layers.empty() && std::find(inputs.begin(), inputs.end(), "position_ids") != inputs.end() &&
         std::all_of(layers.begin(), layers.end(), [](const nn::SelfAttention* layer) {
           const auto* rotary = layer->rotary();
           return layer->is_causal() && !layer->attend.replaced() &&
                  (rotary == nullptr || rotary->options().scaling.type != "dynamic");
         });
}

/// Whether two ways to compute scores in this dtype differ by rounding alone.
bool are_close(const at::Tensor& a, const at::Tensor& b, at::ScalarType dtype) {
  const bool is_coarse = dtype != at::kFloat || at::globalContext().allowTF32CuBLAS();
  const double part = dtype == at::kDouble ? 1e-9 : is_coarse ? 5e-2 : 1e-3;
  const auto finite = b.masked_select(at::isfinite(b));
  return finite.numel() > 0 && at::allclose(a, b, 0, part * finite.abs().max().item<double>());
}

}  // namespace

struct NextToken::Cache {
  /// Of one layer, [1, K, capacity, d].
  struct Layer {
    at::Tensor keys, values;

    /// Puts those of the next tokens behind the `before` that are there. Returns those of all tokens.
    std::pair<at::Tensor, at::Tensor> append(std::int64_t before, const at::Tensor& k, const at::Tensor& v) {
      const auto after = before + k.size(2);
      for (auto [all, next] : {std::pair{&keys, &k}, {&values, &v}}) {
        if (!all->defined() || all->size(2) < after) {
          auto larger = at::empty({next->size(0), next->size(1), 2 * after, next->size(3)}, next->options());
          if (before > 0) larger.narrow(2, 0, before).copy_(all->narrow(2, 0, before));
          *all = std::move(larger);
        }
        all->narrow(2, before, next->size(2)).copy_(*next);
      }
      return {keys.narrow(2, 0, after), values.narrow(2, 0, after)};
    }
  };

  std::vector<Layer> layers;
  std::int64_t tokens = 0;             ///< that are cached when a forward pass begins
  at::ScalarType dtype = at::kDouble;  ///< of keys
  bool is_on = true;
};

NextToken::NextToken(nn::Model& model, Forward forward) : forward_(std::move(forward)) {
  const auto layers = nn::layers_in<nn::SelfAttention>(model);
  if (!can_cache(model, layers)) return;
  cache_ = std::make_shared<Cache>();
  cache_->layers.resize(layers.size());
  for (std::size_t i = 0; i < layers.size(); ++i)
    layers[i]->attend.replace([i, layer = layers[i], cache = cache_](
                                  const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                  const nn::Context& context, std::int64_t, const nn::AttentionPattern& pattern) {
      if (!cache->is_on) return nn::attention(q, k, v, *layer->dropout, context, pattern, layer->kernel());
      cache->dtype = k.scalar_type();
      const auto [keys, values] = cache->layers[i].append(cache->tokens, k, v);
      auto of_these = pattern;
      of_these.causal = q.size(2) > 1;  // the last token attends to all
      return nn::attention(q, keys, values, *layer->dropout, context, of_these, layer->kernel());
    });
}

at::Tensor NextToken::operator()(const std::vector<std::int64_t>& ids) {
  if (!cache_) return forward_(ids, 0);
  // An error in a forward pass leaves nothing that counts.
  const auto cached = std::exchange(ids_, {});
  const auto whole = [&] {
    cache_->tokens = 0;
    return forward_(ids, 0);
  };
  const bool follows =
      !cached.empty() && cached.size() + 1 == ids.size() && std::equal(cached.begin(), cached.end(), ids.begin());
  if (!follows) {
    auto scores = whole();
    ids_ = ids;
    return scores;
  }
  cache_->tokens = static_cast<std::int64_t>(cached.size());
  auto scores = forward_({ids.back()}, cache_->tokens);
  if (!std::exchange(is_checked_, true)) {
    auto expected = whole();
    if (!are_close(scores, expected, cache_->dtype)) {
      cache_->is_on = false;
      cache_->layers.clear();
      cache_ = nullptr;
      return expected;
    }
    scores = std::move(expected);
  }
  ids_ = ids;
  return scores;
}

}  // namespace trireme::train
