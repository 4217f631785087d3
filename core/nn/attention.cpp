#include "core/nn/attention.h"

#include <ATen/SDPBackend.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/_fused_sdp_choice.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/zeros.h>

#include <cmath>

#include "core/base/error.h"

namespace trireme::nn {

at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, Dropout& dropout,
                     const Context& context, bool fused) {
  if (fused && !dropout.active(context)) return at::scaled_dot_product_attention(q, k, v);
  const double scale = 1 / std::sqrt(static_cast<double>(q.size(-1)));
  const auto scores = at::matmul(q * scale, k.transpose(-2, -1));
  const auto kept = dropout.forward(at::softmax(scores, -1), context);
  return at::matmul(kept.to(v.scalar_type()), v);
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

static std::shared_ptr<Linear> projection(const SelfAttention::Options& o) {
  if (o.heads < 1 || o.hidden % o.heads != 0)
    throw ConfigError(
        fmt::format("an attention layer of {} features cannot have {} heads; choose a number that divides {}", o.hidden,
                    o.heads, o.hidden));
  return std::make_shared<Linear>(Linear::Options{
      .in = o.hidden, .out = o.hidden, .bias = o.bias, .init_std = o.init_std, .out_unit = o.hidden / o.heads});
}

SelfAttention::SelfAttention(const Options& options)
    : query(register_module("query", projection(options))),
      key(register_module("key", projection(options))),
      value(register_module("value", projection(options))),
      dropout(register_module("dropout", std::make_shared<Dropout>(options.dropout))),
      heads_(options.heads),
      head_size_(options.hidden / options.heads) {}

at::Tensor SelfAttention::forward(const at::Tensor& x, const Context& context, std::int64_t query_tokens) {
  const auto ask = [&] { return query->forward(query_tokens == 0 ? x : x.narrow(1, 0, query_tokens), context); };
  const auto by_head = [this](const at::Tensor& y) { return y.unflatten(-1, {-1, head_size_}).transpose(1, 2); };
  const auto mix = [&] {
    const auto [q, k, v] = projection_
                               ? projection_(x, context, query_tokens)
                               : std::array<at::Tensor, 3>{ask(), key->forward(x, context), value->forward(x, context)};
    return attention_ ? attention_(by_head(q), by_head(k), by_head(v), context, query_tokens)
                      : attention(by_head(q), by_head(k), by_head(v), *dropout, context, fused_);
  };
  return mix().transpose(1, 2).flatten(2);  // mix() has returned: q, k and v are freed unless the graph holds them
}

}  // namespace trireme::nn
