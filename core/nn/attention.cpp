#include "core/nn/attention.h"

#include <ATen/SDPBackend.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/_fused_sdp_choice.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "core/base/error.h"

namespace trireme::nn {
namespace {

/// Its exponential is 0 in every dtype, and a query without keys that count keeps the differences of its scores, which
/// a running softmax over parts of the keys needs.
constexpr double kMasked = -1e4;

std::shared_ptr<Linear> projection(const SelfAttention::Options& o, std::int64_t heads, std::int64_t head_size) {
  return std::make_shared<Linear>(Linear::Options{
      .in = o.hidden, .out = heads * head_size, .bias = o.bias, .init_std = o.init_std, .out_unit = head_size});
}

/// The options with what follows from others. @throws ConfigError
SelfAttention::Options complete(SelfAttention::Options o) {
  if (o.heads < 1 || (o.head_size == 0 && o.hidden % o.heads != 0))
    throw ConfigError(
        fmt::format("an attention layer of {} features cannot have {} heads; choose a number that divides {}", o.hidden,
                    o.heads, o.hidden));
  if (o.key_value_heads == 0) o.key_value_heads = o.heads;
  if (o.heads % o.key_value_heads != 0)
    throw ConfigError(
        fmt::format("{} attention heads cannot share {} heads of keys and values; choose a number that "
                    "divides {}",
                    o.heads, o.key_value_heads, o.heads));
  if (o.head_size == 0) o.head_size = o.hidden / o.heads;
  return o;
}

}  // namespace

at::Tensor score_bias(const AttentionPattern& pattern, shard::Range queries, shard::Range keys, at::ScalarType dtype,
                      c10::Device device) {
  at::Tensor bias;
  if (pattern.key_mask.defined()) {
    const auto out = pattern.key_mask.narrow(1, keys.begin, keys.size()).eq(0).to(device);
    bias = at::zeros(out.sizes(), at::TensorOptions(dtype).device(device)).masked_fill_(out, kMasked);
    bias = bias.unsqueeze(1).unsqueeze(1);  // [B, 1, 1, keys]
  }
  if (!pattern.causal || keys.end <= queries.begin + 1) return bias;  // all keys are before the first query
  const auto positions = [&](shard::Range range) {
    return at::arange(range.begin, range.end, at::TensorOptions(at::kLong).device(device));
  };
  const auto later = positions(keys).unsqueeze(0).gt(positions(queries).unsqueeze(1));
  if (!bias.defined()) bias = at::zeros({1, 1, queries.size(), keys.size()}, at::TensorOptions(dtype).device(device));
  return bias.masked_fill(later, -std::numeric_limits<double>::infinity());
}

at::Tensor repeat_heads(const at::Tensor& x, std::int64_t count) {
  if (x.size(1) == count) return x;
  return x.unsqueeze(2).expand({-1, -1, count / x.size(1), -1, -1}).flatten(1, 2);
}

at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, Dropout& dropout,
                     const Context& context, const AttentionPattern& pattern, bool fused) {
  TRIREME_REQUIRE(!pattern.key_mask.defined() || pattern.key_mask.size(1) == k.size(2),
                  "the mask of the keys has {} tokens, but there are {} keys", pattern.key_mask.size(1), k.size(2));
  const auto keys = repeat_heads(k, q.size(1)), values = repeat_heads(v, q.size(1));
  const bool in_kernel = fused && !dropout.active(context);
  const bool kernel_causal = pattern.causal && !pattern.key_mask.defined() && in_kernel;
  const auto bias =
      kernel_causal ? at::Tensor() : score_bias(pattern, {0, q.size(2)}, {0, k.size(2)}, q.scalar_type(), q.device());
  if (in_kernel) {
    std::optional<at::Tensor> mask;
    if (bias.defined()) mask = bias.expand({q.size(0), -1, q.size(2), -1});
    return at::scaled_dot_product_attention(q, keys, values, mask, 0, kernel_causal);
  }
  const double scale = 1 / std::sqrt(static_cast<double>(q.size(-1)));
  auto scores = at::matmul(q * scale, keys.transpose(-2, -1));
  if (bias.defined()) scores = scores + bias;
  const auto kept = dropout.forward(at::softmax(scores, -1), context);
  return at::matmul(kept.to(v.scalar_type()), values);
}

std::string attention_kernel(std::int64_t heads, std::int64_t tokens, std::int64_t head_size, at::ScalarType dtype,
                             c10::Device device) {
  const auto x =
      at::zeros({1, heads, tokens, head_size}, at::TensorOptions(dtype).device(device)).set_requires_grad(true);
  switch (static_cast<at::SDPBackend>(at::_fused_sdp_choice(x, x, x))) {
    case at::SDPBackend::flash_attention:
      return "flash";
    case at::SDPBackend::efficient_attention:
      return "memory-efficient";
    case at::SDPBackend::cudnn_attention:
      return "cuDNN";
    default:
      return "";
  }
}

SelfAttention::SelfAttention(const Options& given)
    : projections(std::vector<std::shared_ptr<Linear>>{}),
      dropout(std::make_shared<Dropout>(given.dropout)),
      heads_(given.heads),
      causal_(given.causal),
      mask_(given.mask),
      rotary_(given.rotary) {
  const auto o = complete(given);
  key_value_heads_ = o.key_value_heads;
  head_size_ = o.head_size;
  std::vector<std::shared_ptr<Linear>> parts;
  for (std::size_t i = 0; i < o.names.size(); ++i)
    parts.push_back(register_module(o.names[i], projection(o, i == 0 ? o.heads : o.key_value_heads, o.head_size)));
  projections = LinearGroup(std::move(parts));
  register_module("dropout", dropout);
}

AttentionPattern SelfAttention::pattern(const Context& context) const {
  const auto* mask = mask_.empty() ? nullptr : context.side.find(mask_);
  return {causal_, mask == nullptr ? at::Tensor() : *mask};
}

at::Tensor SelfAttention::by_head(const at::Tensor& y) const {
  return y.unflatten(-1, {-1, head_size_}).transpose(1, 2);
}

at::Tensor SelfAttention::key_value_heads_here(const at::Tensor& x) const {
  if (!heads_here_) return x;
  const auto shared = heads_ / key_value_heads_;
  const auto first = heads_here_->begin / shared, end = (heads_here_->end + shared - 1) / shared;
  return repeat_heads(x.narrow(1, first, end - first), (end - first) * shared)
      .narrow(1, heads_here_->begin - first * shared, heads_here_->size());
}

at::Tensor SelfAttention::forward(const at::Tensor& x, const Context& context, std::int64_t query_tokens) {
  const auto mix = [&] {
    auto parts = projections.forward(x, context, query_tokens);
    auto q = by_head(parts[0]), k = by_head(parts[1]);
    const auto v = key_value_heads_here(by_head(parts[2]));
    if (rotary_) {
      const auto first = first_token_ ? first_token_(context) : 0;
      q = rotary_->rotate(q, first, context);
      k = rotary_->rotate(k, first, context);
    }
    k = key_value_heads_here(k);
    return attention_ ? attention_(q, k, v, context, query_tokens, pattern(context))
                      : attention(q, k, v, *dropout, context, pattern(context), fused_);
  };
  return mix().transpose(1, 2).flatten(2);  // mix() has returned: q, k and v are freed unless the graph holds them
}

}  // namespace trireme::nn
