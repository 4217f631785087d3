#include "core/nn/layers/attention.h"

#include <ATen/Context.h>
#include <ATen/SDPBackend.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/_fused_sdp_choice.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "core/base/error.h"
#include "core/nn/autograd/recompute.h"
#include "core/nn/block.h"
#include "core/nn/layers/attention_dropout.h"
#include "core/nn/layers/fused_attention.h"

namespace trireme::nn {
namespace {

/// The score of a masked key. Its exponential is 0 in every dtype, but it is finite, so a query whose keys are all
/// masked keeps the differences of its scores, which a running softmax over parts of the keys needs.
constexpr double kMasked = -1e4;

std::shared_ptr<Linear> projection(const SelfAttention::Options& o, std::int64_t heads) {
  return std::make_shared<Linear>(Linear::Options{.in = o.hidden,
                                                  .out = heads * o.head_size,
                                                  .bias = o.bias,
                                                  .init_std = o.init_std,
                                                  .out_unit = o.head_size,
                                                  .stored_transposed = o.stored_transposed});
}

std::shared_ptr<RmsNorm> head_norm(const SelfAttention::Options& o) {
  return o.query_key_norm ? std::make_shared<RmsNorm>(o.head_size, *o.query_key_norm) : nullptr;
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
  if (o.names.size() != 1 && o.names.size() != 3)
    throw ConfigError(
        fmt::format("an attention layer has one projection or three, not {}; give one name for a fused one, or names "
                    "for query, key "
                    "and value",
                    o.names.size()));
  return o;
}

/// While it lives, LibTorch may use only the kernel of this name, and what `math` says. LibTorch keeps this choice for
/// the whole process, so it is set for each call.
class OnlyKernel {
 public:
  OnlyKernel(AttentionKernel kernel, bool math) {
    if (kernel == AttentionKernel::fastest) return;
    before_ = {context().userEnabledFlashSDP(), context().userEnabledMemEfficientSDP(), context().userEnabledCuDNNSDP(),
               context().userEnabledMathSDP()};
    set({kernel == AttentionKernel::flash, kernel == AttentionKernel::memory_efficient,
         kernel == AttentionKernel::cudnn, math});
  }
  OnlyKernel(const OnlyKernel&) = delete;
  OnlyKernel& operator=(const OnlyKernel&) = delete;
  ~OnlyKernel() {
    if (before_) set(*before_);
  }

 private:
  struct Enabled {
    bool flash, memory_efficient, cudnn, math;
  };
  static at::Context& context() { return at::globalContext(); }
  static void set(const Enabled& enabled) {
    context().setSDPUseFlash(enabled.flash);
    context().setSDPUseMemEfficient(enabled.memory_efficient);
    context().setSDPUseCuDNN(enabled.cudnn);
    context().setSDPUseMath(enabled.math);
  }
  std::optional<Enabled> before_;
};

at::Tensor make_bias(const AttentionPattern& pattern, shard::Range queries, shard::Range keys, at::ScalarType dtype,
                     c10::Device device) {
  at::Tensor bias, masked;  // [B, 1 or queries, keys]
  if (pattern.key_mask.defined()) masked = pattern.key_mask.narrow(1, keys.begin, keys.size()).eq(0).unsqueeze(1);
  if (pattern.documents.defined()) {
    const auto of = [&](shard::Range range) { return pattern.documents.narrow(1, range.begin, range.size()); };
    const auto others = of(queries).unsqueeze(2).ne(of(keys).unsqueeze(1));
    masked = masked.defined() ? masked.logical_or(others) : others;
  }
  if (masked.defined()) {
    masked = masked.to(device).unsqueeze(1);
    bias = at::zeros(masked.sizes(), at::TensorOptions(dtype).device(device)).masked_fill_(masked, kMasked);
  }
  if (!pattern.causal || keys.end <= queries.begin + 1) return bias;  // all keys are before the first query
  const auto positions = [&](shard::Range range) {
    return at::arange(range.begin, range.end, at::TensorOptions(at::kLong).device(device));
  };
  const auto later = positions(keys).unsqueeze(0).gt(positions(queries).unsqueeze(1));
  if (!bias.defined()) bias = at::zeros({1, 1, queries.size(), keys.size()}, at::TensorOptions(dtype).device(device));
  return bias.masked_fill(later, -std::numeric_limits<double>::infinity());
}

/// The biases of one pattern with documents, which are as large as the scores of a head: all layers of a model, and
/// their backward passes, use the same tensors. Holding the pattern keeps others from having the same tensors.
struct LastBiases {
  struct Made {
    shard::Range queries, keys;
    at::Tensor bias;
  };
  AttentionPattern pattern;
  std::vector<Made> made;

  const at::Tensor& get(const AttentionPattern& of, shard::Range queries, shard::Range keys, at::ScalarType dtype,
                        c10::Device device) {
    if (of.causal != pattern.causal || !of.documents.is_same(pattern.documents) ||
        !of.key_mask.is_same(pattern.key_mask)) {
      made.clear();
      pattern = of;
    }
    for (const auto& each : made)
      if (each.queries == queries && each.keys == keys && each.bias.scalar_type() == dtype &&
          each.bias.device() == device)
        return each.bias;
    return made.emplace_back(Made{queries, keys, make_bias(of, queries, keys, dtype, device)}).bias;
  }
};

}  // namespace

at::Tensor score_bias(const AttentionPattern& pattern, shard::Range queries, shard::Range keys, at::ScalarType dtype,
                      c10::Device device) {
  if (!pattern.documents.defined()) return make_bias(pattern, queries, keys, dtype, device);
  thread_local LastBiases last;
  return last.get(pattern, queries, keys, dtype, device);
}

at::Tensor repeat_heads(const at::Tensor& x, std::int64_t count) {
  if (x.size(1) == count) return x;
  return x.unsqueeze(2).expand({-1, -1, count / x.size(1), -1, -1}).flatten(1, 2);
}

at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, Dropout& dropout,
                     const Context& context, const AttentionPattern& pattern, AttentionKernel kernel,
                     std::int64_t first_head) {
  for (const auto& mask : {pattern.key_mask, pattern.documents})
    TRIREME_REQUIRE(!mask.defined() || mask.size(1) == k.size(2),
                    "the mask of the keys has {} tokens, but there are {} keys", mask.size(1), k.size(2));
  const auto keys = repeat_heads(k, q.size(1)), values = repeat_heads(v, q.size(1));
  const bool in_kernel = kernel != AttentionKernel::math && !dropout.active(context);
  const bool masked = pattern.key_mask.defined() || pattern.documents.defined();
  const bool kernel_causal = pattern.causal && !masked && in_kernel;
  const auto bias =
      kernel_causal ? at::Tensor() : score_bias(pattern, {0, q.size(2)}, {0, k.size(2)}, q.scalar_type(), q.device());
  if (in_kernel) {
    std::optional<at::Tensor> mask;
    if (bias.defined()) mask = bias.expand({q.size(0), -1, q.size(2), -1});
    // No fused kernel takes an empty batch.
    const OnlyKernel only(q.numel() == 0 ? AttentionKernel::fastest : kernel, /*math=*/false);
    return fused_attention(q, keys, values, mask, kernel_causal);
  }
  const double scale = 1 / std::sqrt(static_cast<double>(q.size(-1)));
  auto scores = at::matmul(q * scale, keys.transpose(-2, -1));
  if (bias.defined()) scores = scores + bias;
  auto probabilities = at::softmax(scores, -1);
  if (dropout.active(context))
    probabilities = dropout.apply_mask(probabilities, probability_mask(dropout, context, probabilities,
                                                                       {.first_head = first_head,
                                                                        .queries = {0, q.size(2)},
                                                                        .keys = {0, k.size(2)},
                                                                        .query_tokens = q.size(2),
                                                                        .tokens = k.size(2),
                                                                        .padded = pattern.allows_padding()}));
  return at::matmul(probabilities.to(v.scalar_type()), values);
}

std::string attention_kernel(std::int64_t heads, std::int64_t tokens, std::int64_t head_size, at::ScalarType dtype,
                             c10::Device device, AttentionKernel wanted, bool masked) {
  if (wanted == AttentionKernel::math) return "";
  const OnlyKernel only(wanted, /*math=*/true);
  const auto x =
      at::zeros({1, heads, tokens, head_size}, at::TensorOptions(dtype).device(device)).set_requires_grad(true);
  std::optional<at::Tensor> mask;
  if (masked) mask = at::zeros({1, 1, tokens, tokens}, x.options().requires_grad(false));
  switch (static_cast<at::SDPBackend>(at::_fused_sdp_choice(x, x, x, mask))) {
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
    : options_(complete(given)),
      projections(
          options_.names.size() == 1
              ? LinearGroup(projection(options_, options_.heads + 2 * options_.key_value_heads),
                            {options_.heads * options_.head_size, options_.key_value_heads * options_.head_size,
                             options_.key_value_heads * options_.head_size})
              : LinearGroup({projection(options_, options_.heads), projection(options_, options_.key_value_heads),
                             projection(options_, options_.key_value_heads)})),
      query_norm(head_norm(options_)),
      key_norm(head_norm(options_)),
      dropout(std::make_shared<Dropout>(given.dropout)),
      attend([this](const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const Context& context, std::int64_t,
                    const AttentionPattern& over) { return attention(q, k, v, *dropout, context, over, kernel_); }),
      first_token([](const Context&) { return std::int64_t{0}; }),
      expand_key_value_heads([](const at::Tensor& x) { return x; }) {
  for (std::size_t i = 0; i < options_.names.size(); ++i) register_module(options_.names[i], projections.parts()[i]);
  if (query_norm) {
    register_module("q_norm", query_norm);
    register_module("k_norm", key_norm);
  }
  register_module("dropout", dropout);
}

std::vector<Unary*> SelfAttention::sharded_parts() const {
  auto parts = projections.layers();
  parts.push_back(dropout.get());
  if (query_norm) parts.insert(parts.end(), {query_norm.get(), key_norm.get()});
  return parts;
}

bool SelfAttention::reads(const std::string& side_input) const {
  return side_input == options_.mask || side_input == options_.documents ||
         (options_.rotary && side_input == options_.rotary->options().positions);
}

AttentionPattern SelfAttention::pattern(const Context& context) const {
  const auto side = [&](const std::string& name) {
    const auto* input = name.empty() ? nullptr : context.side.find(name);
    return input == nullptr ? at::Tensor() : *input;
  };
  return {options_.causal, side(options_.mask), side(options_.documents)};
}

at::Tensor SelfAttention::by_head(const at::Tensor& y) const {
  return y.unflatten(-1, {-1, options_.head_size}).transpose(1, 2);
}

at::Tensor SelfAttention::forward(const at::Tensor& x, const Context& context, std::int64_t query_tokens) {
  if (!recompute_) return compute(x, context, query_tokens);
  auto run = [this, self = shared_from_this(), context, query_tokens](const Tensors& in) {
    return Tensors{compute(in[0], context, query_tokens)};
  };
  auto parameters = projections.parameters();
  for (const auto* norm : {query_norm.get(), key_norm.get()})
    if (norm != nullptr) parameters.push_back(norm->parameters().front());
  return run_recomputable({.run = std::move(run), .parameters = std::move(parameters)}, {x}).front();
}

at::Tensor SelfAttention::compute(const at::Tensor& x, const Context& context, std::int64_t query_tokens) {
  const auto mix = [&] {
    auto parts = projections.forward(x, context, query_tokens);
    auto q = by_head(parts[0]), k = by_head(parts[1]);
    if (query_norm) {
      q = query_norm->forward(q, context);
      k = key_norm->forward(k, context);
    }
    if (options_.rotary) {
      const auto angles = options_.rotary->angles(k, first_token(context), context);
      q = Rotary::rotate(q, angles);
      k = Rotary::rotate(k, angles);
    }
    return attend(q, expand_key_value_heads(k), expand_key_value_heads(by_head(parts[2])), context, query_tokens,
                  pattern(context));
  };
  return mix().transpose(1, 2).flatten(2);  // mix() has returned: q, k and v are freed unless the graph holds them
}

std::string unread_side_input(Model& model, const DataSpec& data) {
  auto given = model.input_names();
  if (given.empty()) return "";  // the first block receives all inputs
  const auto side = model.side_input_names();
  given.insert(given.end(), side.begin(), side.end());
  for (const auto* attention : layers_in<SelfAttention>(model))
    for (const auto& input : data.inputs)
      if (attention->reads(input.name) && std::find(given.begin(), given.end(), input.name) == given.end())
        return fmt::format(
            "the data have \"{0}\", which the attention layer \"{1}\" reads, but the model does not pass it on; return "
            "\"{0}\" in Model::side_input_names(), or choose data without it",
            input.name, attention->path());
  return "";
}

}  // namespace trireme::nn
