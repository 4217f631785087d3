#include "shardformer/sequence/ring_attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/logaddexp.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <limits>

#include "core/base/error.h"
#include "core/nn/autograd/saved_state.h"
#include "core/nn/layers/attention_dropout.h"
#include "shardformer/sequence/ring.h"

namespace trireme::shardformer {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr std::int64_t kTokenDim = 3;  // of keys and values, stacked
constexpr int kOfGradients = 1;        // message tag; gather_by_ring(), which passes keys and values, uses 0

at::ScalarType sums_of(at::ScalarType type) { return c10::elementSize(type) < 4 ? at::kFloat : type; }

/// The scores of this rank's queries with one slice of the keys.
struct Block {
  const RingAttention& how;
  shard::Range queries, keys;  ///< positions in the full sequence

  Block(const RingAttention& of, const shard::Range& of_keys)
      : how(of), queries(shard::split(of.query_tokens, of.group.size(), of.group.rank())), keys(of_keys) {}

  /// Whether no query can attend to a key.
  [[nodiscard]] bool empty() const {
    return queries.size() == 0 || keys.size() == 0 || (how.pattern.causal && keys.begin >= queries.end);
  }
  [[nodiscard]] static double scale(const at::Tensor& q) { return 1 / std::sqrt(static_cast<double>(q.size(-1))); }

  [[nodiscard]] at::Tensor scores(const at::Tensor& q, const at::Tensor& k) const {
    auto s = at::matmul(q * scale(q), k.transpose(-2, -1)).to(sums_of(q.scalar_type()));
    const auto bias = nn::score_bias(how.pattern, queries, keys, s.scalar_type(), s.device());
    return bias.defined() ? s.add_(bias) : s;
  }
  /// The gradients of repeated heads, summed for each key-value head.
  [[nodiscard]] static at::Tensor by_key_value_head(const at::Tensor& gradient, std::int64_t heads) {
    if (gradient.size(1) == heads) return gradient;
    return gradient.unflatten(1, {heads, gradient.size(1) / heads}).sum(2, false, sums_of(gradient.scalar_type()));
  }

  /// The factors of the probabilities: 0 or 1 / (1 - p). Undefined: all are 1.
  [[nodiscard]] at::Tensor mask(const at::Tensor& scores) const {
    if (how.dropout == nullptr || !how.dropout->active(how.context)) return {};
    const auto mask = nn::probability_mask(*how.dropout, how.context, scores,
                                           {.first_head = how.first_head,
                                            .queries = queries,
                                            .keys = keys,
                                            .query_tokens = how.query_tokens,
                                            .tokens = how.tokens,
                                            .padded = how.pattern.allows_padding()});
    return mask.to(scores.scalar_type()).mul_(how.dropout->scale());
  }
};

struct Ring : torch::autograd::Function<Ring> {
  static at::Tensor forward(AutogradContext* ctx, const std::shared_ptr<RingAttention>& how, const at::Tensor& q,
                            const at::Tensor& k, const at::Tensor& v) {
    nn::save_state(ctx, how);
    const auto sums = q.options().dtype(sums_of(q.scalar_type()));
    auto out = at::zeros(q.sizes(), sums);
    // log of the sum of exp(scores) so far
    auto total = at::full({q.size(0), q.size(1), q.size(2), 1}, -std::numeric_limits<double>::infinity(), sums);
    const auto use_slice = [&](const shard::Range& slice, const at::Tensor& kv) {
      const Block block(*how, slice);
      if (block.empty()) return;
      const auto keys = nn::repeat_heads(kv[0], q.size(1)), values = nn::repeat_heads(kv[1], q.size(1));
      auto p = block.scores(q, keys);
      const auto grown = at::logaddexp(total, at::logsumexp(p, -1, true));
      out.mul_((total - grown).exp_());
      p.sub_(grown).exp_();
      if (const auto mask = block.mask(p); mask.defined()) p.mul_(mask);
      out.add_(at::matmul(p.to(q.scalar_type()), values));
      total = grown;
    };
    gather_by_ring(at::stack({k, v}), how->tokens, how->group, use_slice, how->overlap, kTokenDim);
    out = out.to(q.scalar_type());
    ctx->save_for_backward({q, k, v, out, total});
    return out;
  }

  // With P the probabilities, M the mask, D = sum(dO * O):  dV = (P M)^T dO,  dS = P ((dO V^T) M - D),  dQ = dS K /
  // sqrt(d), dK = dS^T Q / sqrt(d). The gradients of a slice follow it around the ring, one hop behind, with one more
  // hop to its owner.
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto how = nn::saved_state<RingAttention>(ctx);
    const auto saved = ctx->get_saved_variables();
    const auto &q = saved[0], &k = saved[1], &v = saved[2], &out = saved[3], &total = saved[4];
    const auto& group = how->group;
    const auto sums = total.options();
    const auto& dout = grads[0];
    const auto weighed = (dout.to(sums) * out.to(sums)).sum(-1, true);
    auto dq = at::zeros(q.sizes(), sums);
    at::Tensor incoming;  // gradients of the visited slice, summed over the previous ranks
    comm::Work hop;
    int hops = 0;
    const auto use_slice = [&](const shard::Range& slice, const at::Tensor& kv) {
      const Block block(*how, slice);
      auto own = at::zeros(kv.sizes(), sums);
      if (!block.empty()) {
        const auto keys = nn::repeat_heads(kv[0], q.size(1)), values = nn::repeat_heads(kv[1], q.size(1));
        const auto p = block.scores(q, keys).sub_(total).exp_();
        const auto mask = block.mask(p);
        auto dp = at::matmul(dout, values.transpose(-2, -1)).to(sums);
        if (mask.defined()) dp.mul_(mask);
        const auto ds = dp.sub_(weighed).mul_(p).mul_(Block::scale(q)).to(q.scalar_type());
        const auto dropped_p = (mask.defined() ? p * mask : p).to(q.scalar_type());
        const auto heads = k.size(1);
        dq.add_(at::matmul(ds, keys));
        own[0].add_(Block::by_key_value_head(at::matmul(ds.transpose(-2, -1), q), heads));
        own[1].add_(Block::by_key_value_head(at::matmul(dropped_p.transpose(-2, -1), dout), heads));
      }
      hop.wait();
      if (incoming.defined()) own.add_(incoming);
      auto shape = kv.sizes().vec();
      shape[kTokenDim] = shard::split(how->tokens, group.size(), owner(group, ++hops)).size();
      incoming = at::empty(shape, sums);
      if (group.size() == 1)
        incoming = own;
      else
        hop = hop_async(own, incoming, group, kOfGradients);
      if (!how->overlap) hop.wait();
    };
    gather_by_ring(at::stack({k, v}), how->tokens, group, use_slice, how->overlap, kTokenDim);
    hop.wait();
    const auto type = q.scalar_type();
    return {at::Tensor(), dq.to(type), incoming[0].to(type), incoming[1].to(type)};
  }
};

}  // namespace

at::Tensor ring_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const RingAttention& how) {
  TRIREME_REQUIRE(!how.pattern.causal || how.query_tokens == how.tokens, "causal attention of {} queries to {} tokens",
                  how.query_tokens, how.tokens);
  return Ring::apply(std::make_shared<RingAttention>(how), q, k, v);
}

}  // namespace trireme::shardformer
