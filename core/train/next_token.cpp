#include "core/train/next_token.h"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

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

/// Where the last token of each text is, [B].
at::Tensor last_of(const Texts& texts) {
  std::vector<std::int64_t> last;
  for (const auto& text : texts) last.push_back(static_cast<std::int64_t>(text.size()) - 1);
  return at::tensor(last);
}

/// Over the whole texts. What a shorter one has behind its end changes nothing in a causal model.
NextToken::Pass whole(const Texts& texts) {
  NextToken::Pass pass{.last = last_of(texts)};
  const auto count = static_cast<std::int64_t>(texts.size());
  pass.ids = at::zeros({count, pass.last.max().item<std::int64_t>() + 1}, at::kLong);
  for (std::int64_t i = 0; i < count; ++i) {
    const auto& text = texts[static_cast<std::size_t>(i)];
    pass.ids[i].narrow(0, 0, static_cast<std::int64_t>(text.size())).copy_(at::tensor(text));
  }
  return pass;
}

/// Over the last token of each text.
NextToken::Pass newest(const Texts& texts) {
  std::vector<std::int64_t> ids;
  for (const auto& text : texts) ids.push_back(text.back());
  const auto count = static_cast<std::int64_t>(texts.size());
  return {.ids = at::tensor(ids).unsqueeze(1),
          .positions = last_of(texts).unsqueeze(1),
          .last = at::zeros({count}, at::kLong)};
}

/// Whether each text is the one before and at most one more token.
bool follow(const Texts& texts, const Texts& before) {
  return std::equal(texts.begin(), texts.end(), before.begin(), before.end(), [](const auto& text, const auto& old) {
    return (text.size() == old.size() || text.size() == old.size() + 1) &&
           std::equal(old.begin(), old.end(), text.begin());
  });
}

}  // namespace

struct NextToken::Cache {
  /// Of one layer, [B, K, capacity, d]. What is behind the end of a text is finite and does not count.
  struct Layer {
    at::Tensor keys, values;
  };

  std::vector<Layer> layers;
  at::Tensor places;                   ///< [B, 1]: of the tokens of the pass in each text; undefined: all tokens
  std::int64_t longest = 0;            ///< tokens of the longest text
  at::Tensor key_mask;                 ///< [B, longest]: the keys up to each text's end; undefined: all
  at::ScalarType dtype = at::kDouble;  ///< of keys
  bool is_on = true;

  void begin(const Pass& pass) {
    places = pass.positions;
    const auto last = places.defined() ? places : pass.last;
    longest = last.max().item<std::int64_t>() + 1;
    const bool is_ragged = last.min().item<std::int64_t>() + 1 < longest;
    key_mask = places.defined() && is_ragged ? at::arange(longest).le(places) : at::Tensor();
  }

  /// Puts those of the pass into their places. Returns those of all tokens, [B, K, longest, d].
  at::Tensor put(at::Tensor& all, const at::Tensor& made) const {
    const bool fits = all.defined() && all.size(0) == made.size(0) && all.size(2) >= longest;
    if (!fits) {
      auto larger = at::zeros({made.size(0), made.size(1), 2 * longest, made.size(3)}, made.options());
      if (places.defined()) larger.narrow(2, 0, all.size(2)).copy_(all);
      all = std::move(larger);
    }
    if (places.defined())
      all.scatter_(2, places.to(made.device()).unsqueeze(1).unsqueeze(3).expand_as(made), made);
    else
      all.narrow(2, 0, longest).copy_(made);
    return all.narrow(2, 0, longest);
  }

  /// Which keys the newest tokens attend to: those up to their own places.
  nn::AttentionPattern pattern(nn::AttentionPattern of_text, c10::Device device) {
    of_text.causal = !places.defined();
    if (key_mask.defined()) of_text.key_mask = key_mask = key_mask.to(device);
    return of_text;
  }
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
      auto& own = cache->layers[i];
      const auto keys = cache->put(own.keys, k), values = cache->put(own.values, v);
      return nn::attention(q, keys, values, *layer->dropout, context, cache->pattern(pattern, q.device()),
                           layer->kernel());
    });
}

at::Tensor NextToken::without_cache(const Texts& texts) const {
  struct Off {
    explicit Off(Cache* cache) : cache_(cache) { set(false); }
    ~Off() { set(true); }
    void set(bool on) const {
      if (cache_ != nullptr) cache_->is_on = on;
    }
    Cache* cache_;
  };
  const Off off(cache_.get());
  std::vector<at::Tensor> scores;
  for (const auto& text : texts) scores.push_back(forward_(whole({text})));
  return at::cat(scores);
}

at::Tensor NextToken::operator()(const Texts& texts) {
  if (!cache_) return without_cache(texts);
  // An error in a forward pass leaves nothing that counts.
  const auto cached = std::exchange(texts_, {});
  const auto compute = [&](const Pass& pass) {
    cache_->begin(pass);
    return forward_(pass);
  };
  const bool follows = !cached.empty() && follow(texts, cached);
  auto scores = compute(follows ? newest(texts) : whole(texts));
  if (!is_checked_ && (follows || texts.size() > 1)) {
    auto expected = without_cache(texts);
    if (!are_close(scores, expected, cache_->dtype)) {
      cache_->is_on = false;
      cache_->layers.clear();
      cache_ = nullptr;
      return expected;
    }
    is_checked_ = follows;
    scores = std::move(expected);
  }
  texts_ = texts;
  return scores;
}

}  // namespace trireme::train
