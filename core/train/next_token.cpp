#include "core/train/next_token.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <string>
#include <utility>

#include "core/nn/layers/attention.h"

namespace trireme::train {
namespace {

/// Of one layer, [1, K, capacity, d].
struct KeysAndValues {
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

bool can_keep(nn::Model& model, const std::vector<nn::SelfAttention*>& layers) {
  const auto inputs = model.side_input_names();
  return !layers.empty() && std::find(inputs.begin(), inputs.end(), "position_ids") != inputs.end() &&
         std::all_of(layers.begin(), layers.end(), [](const nn::SelfAttention* layer) {
           const auto* rotary = layer->rotary();
           return layer->is_causal() && !layer->attend.replaced() &&
                  (rotary == nullptr || rotary->options().scaling.type != "dynamic");
         });
}

/// Whether two ways to compute scores differ by rounding alone.
bool are_close(const at::Tensor& a, const at::Tensor& b) {
  const double part = a.scalar_type() == at::kDouble ? 1e-9 : a.scalar_type() == at::kFloat ? 1e-3 : 5e-2;
  return (a - b).abs().max().item<double>() <= part * b.abs().max().item<double>();
}

}  // namespace

struct NextToken::Kept {
  std::int64_t tokens = 0;  ///< of which the layers have keys and values when a forward pass begins
  bool is_on = true;
};

NextToken::NextToken(nn::Model& model, Forward forward) : forward_(std::move(forward)) {
  const auto layers = nn::layers_in<nn::SelfAttention>(model);
  if (!can_keep(model, layers)) return;
  kept_ = std::make_shared<Kept>();
  for (auto* layer : layers)
    layer->attend.replace([layer, kept = kept_, own = std::make_shared<KeysAndValues>()](
                              const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const nn::Context& context,
                              std::int64_t, const nn::AttentionPattern& pattern) {
      if (!kept->is_on) return nn::attention(q, k, v, *layer->dropout, context, pattern, layer->kernel());
      const auto [keys, values] = own->append(kept->tokens, k, v);
      auto over = pattern;
      over.causal = q.size(2) > 1;  // the last token attends to all
      return nn::attention(q, keys, values, *layer->dropout, context, over, layer->kernel());
    });
}

at::Tensor NextToken::operator()(const std::vector<std::int64_t>& ids) {
  const auto whole = [&] {
    if (kept_) kept_->tokens = 0;
    return forward_(ids, 0);
  };
  const auto before = static_cast<std::int64_t>(ids.size()) - 1;
  const bool follows =
      kept_ && !ids_.empty() && ids_.size() + 1 == ids.size() && std::equal(ids_.begin(), ids_.end(), ids.begin());
  if (!follows) {
    auto scores = whole();
    if (kept_) ids_ = ids;
    return scores;
  }
  kept_->tokens = before;
  auto scores = forward_({ids.back()}, before);
  ids_ = ids;
  if (std::exchange(is_checked_, true)) return scores;
  auto expected = whole();
  if (!are_close(scores, expected)) {
    kept_->is_on = false;
    kept_ = nullptr;
  }
  return expected;
}

}  // namespace trireme::train
