// The parts of sequence parallelism: collectives that gather and scatter tokens, and attention over slices, against the
// same computation on one rank, forward and backward, in float64.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>

#include "core/base/trace.h"
#include "core/nn/layers/attention_dropout.h"
#include "core/shard/init.h"
#include "shardformer/sequence/head_exchange.h"
#include "shardformer/sequence/ring.h"
#include "shardformer/sequence/ring_attention.h"
#include "shardformer/sequence/ring_products.h"
#include "shardformer/sequence/slices.h"
#include "tests/ranks/world.h"

namespace trireme::shardformer {
namespace {

using tests::on;
using tests::world;
using Tensors = std::vector<at::Tensor>;

const comm::Group& group() { return world().group(); }

/// Random numbers, equal on every rank.
at::Tensor draw(const std::string& name, std::vector<std::int64_t> shape) {
  return shard::draw(shard::Init::normal(0, 1), 5, shard::Placement::whole(name, std::move(shape)), at::kDouble,
                     world().device());
}
at::Tensor leaf(const at::Tensor& x) { return x.detach().clone().requires_grad_(true); }
at::Tensor mine(const at::Tensor& x, std::int64_t dim) {
  const auto tokens = local_tokens(x.size(dim), group());
  return x.narrow(dim, tokens.begin, tokens.size());
}
double off(const at::Tensor& got, const at::Tensor& expected) {
  EXPECT_EQ(got.sizes(), expected.sizes());
  return got.numel() == 0 ? 0 : (got - expected).abs().max().item<double>();
}
at::Tensor summed(at::Tensor x) {
  x = x.clone();
  group().all_reduce(x);
  return x;
}
constexpr double kTiny = 1e-12;

/// Numbers of tokens that divide by the ranks, that do not, and that are smaller than the number of ranks.
const std::vector<std::int64_t> kCounts{12, 10, 7, 2, 1};

TEST(Slices, RoundTrip) {
  for (const auto n : kCounts) {
    const auto x = draw("x", {2, n, 3}), dy = draw("dy", {2, n, 3});
    const auto whole = leaf(x), slice = leaf(mine(x, 1));
    const auto scattered = scatter_tokens(whole, group());
    EXPECT_EQ(off(scattered, mine(x, 1)), 0);
    scattered.backward(mine(dy, 1));
    EXPECT_EQ(off(whole.grad(), dy), 0) << n;
    EXPECT_EQ(off(gather_async(slice.detach(), n, group()).wait(), x), 0);
    const auto share = leaf(x * (group().rank() + 1));
    const auto sum = sum_to_slices(share, group());
    EXPECT_LE(off(sum, mine(x, 1) * (group().size() * (group().size() + 1) / 2)), kTiny);
    sum.backward(mine(dy, 1));
    EXPECT_EQ(off(share.grad(), dy), 0) << n;
  }
}

TEST(Slices, TheFirstTokenReachesAll) {
  const auto x = draw("x", {2, 10, 3}), dy = draw("dy", {2, 1, 3});
  const auto slice = leaf(mine(x, 1));
  const auto token = first_token_to_all(slice, group());
  EXPECT_EQ(off(token, x.narrow(1, 0, 1)), 0);
  token.backward(dy);
  auto expected = at::zeros_like(slice);
  if (group().rank() == 0) expected.narrow(1, 0, 1).copy_(dy);
  EXPECT_EQ(off(slice.grad(), expected), 0);
}

TEST(Slices, OnlyRequestedGradientsAreSummed) {
  const auto a = leaf(draw("a", {3})), frozen = draw("b", {2}), c = leaf(draw("c", {2, 2}));
  const auto same = sum_gradients({a, frozen, c}, group());
  const double r = group().rank() + 1, all = group().size() * (group().size() + 1) / 2.0;
  (same[0].sum() * r + (same[1].sum() + same[2].sum()) * 2 * r).backward();
  EXPECT_EQ(off(a.grad(), at::ones({3}, on(at::kDouble)) * all), 0);
  EXPECT_EQ(off(c.grad(), at::ones({2, 2}, on(at::kDouble)) * (2 * all)), 0);
  EXPECT_FALSE(frozen.grad().defined());
}

/// Checks column-parallel products of slices against those of one rank. The second branch reads `asked` tokens.
void expect_column(bool ring, std::int64_t n, std::int64_t asked, bool overlap) {
  const auto x = draw("x", {2, n, 4});
  const std::int64_t r = group().rank();
  const Tensors weights{leaf(draw(fmt::format("w{}", r), {3, 4})), leaf(draw(fmt::format("v{}", r), {2, 4}))};
  const auto bias = leaf(draw(fmt::format("b{}", r), {3}));
  const auto dy = draw(fmt::format("dy{}", r), {2, n, 3}), dz = draw(fmt::format("dz{}", r), {2, asked, 2});
  const auto run = [&](const Tensors& y) { ((y[0] * dy).sum() + (y[1] * dz).sum()).backward(); };
  const auto whole = leaf(x), slice = leaf(mine(x, 1));
  const Tensors plain{at::linear(whole, weights[0], bias), at::linear(whole.narrow(1, 0, asked), weights[1])};
  run(plain);
  Tensors expected{mine(summed(whole.grad()), 1)};
  for (const auto& p : {weights[0], weights[1], bias}) {
    expected.push_back(p.grad().clone());
    p.mutable_grad() = at::Tensor();
  }
  const std::vector<Branch> branches{{weights[0], bias}, {weights[1], at::Tensor(), asked}};
  const auto y = ring ? column_products_by_ring(slice, n, branches, group(), overlap)
                      : column_products_of_slices(slice, n, branches, group(), overlap);
  EXPECT_LE(std::max(off(y[0], plain[0]), off(y[1], plain[1])), kTiny);
  run(y);
  EXPECT_LE(off(slice.grad(), expected[0]), kTiny) << n;
  EXPECT_LE(off(weights[0].grad(), expected[1]), kTiny) << n;
  EXPECT_LE(off(weights[1].grad(), expected[2]), kTiny) << n;
  EXPECT_LE(off(bias.grad(), expected[3]), kTiny) << n;
}

TEST(Products, OfSlicesEqualTheWhole) {
  for (const bool ring : {false, true})
    for (const auto n : kCounts)
      for (const std::int64_t asked : {std::int64_t{1}, n})
        for (const bool overlap : {true, false}) expect_column(ring, n, asked, overlap);
}

TEST(Products, OfRowsByRingEqualTheSum) {
  for (const auto n : kCounts) {
    const auto r = group().rank();
    const auto x = leaf(draw(fmt::format("x{}", r), {2, n, 3})), weight = leaf(draw(fmt::format("w{}", r), {4, 3}));
    const auto dy = draw("dy", {2, n, 4});
    const auto expected = mine(summed(at::linear(x, weight).detach()), 1);
    (at::linear(x, weight) * dy).sum().backward();
    const auto dx = x.grad().clone(), dw = weight.grad().clone();
    x.mutable_grad() = weight.mutable_grad() = at::Tensor();
    const auto y = row_product_by_ring(x, weight, group());
    EXPECT_LE(off(y, expected), kTiny) << n;
    y.backward(mine(dy, 1));
    EXPECT_LE(std::max(off(x.grad(), dx), off(weight.grad(), dw)), kTiny) << n;
  }
}

std::uint64_t sent_so_far() {
  std::uint64_t elements = 0;
  for (const auto& [key, entry] : world().comm_stats().totals()) elements += entry.payload_elements;
  return elements;
}

// A zero-bubble pipeline computes the input's gradient in one pass and the weight's in another.
TEST(Products, GiveEachGradientInASeparatePass) {
  const std::int64_t n = 10;
  const auto weight = leaf(draw("w", {4, 3}));
  const auto check = [&](const at::Tensor& x, const std::function<at::Tensor()>& product) {
    const auto ask = [](const at::Tensor& y, const Tensors& of) {
      return torch::autograd::grad({y}, of, {at::ones_like(y)}, /*retain_graph=*/true);
    };
    const auto begin = sent_so_far();
    const auto both = ask(product(), {x, weight});
    const auto at_once = sent_so_far() - begin;
    const auto y = product();
    const auto dx = ask(y, {x}), dw = ask(y, {weight});
    EXPECT_EQ(sent_so_far() - begin, 2 * at_once);
    EXPECT_LE(std::max(off(dx[0], both[0]), off(dw[0], both[1])), kTiny);
  };
  const auto slice = leaf(mine(draw("x", {2, n, 3}), 1)), whole = leaf(draw("x", {2, n, 3}));
  check(slice, [&] { return column_products_of_slices(slice, n, {{weight, at::Tensor()}}, group()).front(); });
  check(slice, [&] { return column_products_by_ring(slice, n, {{weight, at::Tensor()}}, group()).front(); });
  check(whole, [&] { return row_product_by_ring(whole, weight, group()); });
}

TEST(Heads, RoundTrip) {
  for (const std::int64_t heads : {4, 7})
    for (const auto n : kCounts) {
      const auto x = draw("x", {2, heads, n, 3}), y = draw("y", {2, heads, 1, 3});
      const auto share = shard::split(heads, group().size(), group().rank());
      const auto slice = leaf(mine(x, 2));
      const auto all = tokens_to_heads({slice, mine(y, 2)}, {n, 1}, group());
      EXPECT_EQ(off(all[0], x.narrow(1, share.begin, share.size())), 0);
      EXPECT_EQ(off(all[1], y.narrow(1, share.begin, share.size())), 0);
      const auto back = heads_to_tokens(all[0] * 2, heads, group());
      EXPECT_EQ(off(back, mine(x, 2) * 2), 0);
      back.backward(mine(x, 2));
      EXPECT_EQ(off(slice.grad(), mine(x, 2) * 2), 0) << n;
    }
}

struct AttentionRow {
  std::int64_t query_tokens, tokens;
  bool causal = false;
  double dropout = 0;
  bool mask = false;                 ///< some keys are masked, in one sample all of them
  std::int64_t key_value_heads = 3;  ///< of 3
  bool documents = false;            ///< sample 0 has several
};

// The cases include causal attention, queries of the first token alone, and dropout with the mask of one process.
TEST(RingAttention, EqualsOneRank) {
  for (const auto& [query_tokens, tokens, causal, p, masked, kv_heads, documents] :
       std::vector<AttentionRow>{{12, 12},
                                 {10, 10},
                                 {10, 10, true},
                                 {10, 10, false, 0.3},
                                 {10, 10, true, 0.3},
                                 {1, 10},
                                 {1, 10, false, 0.3},
                                 {2, 2},
                                 {2, 2, true},
                                 {1, 1, true},
                                 {7, 7, true, 0.5},
                                 {10, 10, false, 0, true},
                                 {10, 10, true, 0.3, true, 1},
                                 {1, 10, false, 0, true, 1},
                                 {9, 9, true, 0, false, 1},
                                 {12, 12, true, 0.3, false, 1, true},
                                 {10, 10, false, 0, true, 3, true},
                                 {1, 10, false, 0, false, 3, true}}) {
    SCOPED_TRACE(fmt::format("{} of {}, causal {}, dropout {}, mask {}, {} key-value heads, documents {}", query_tokens,
                             tokens, causal, p, masked, kv_heads, documents));
    nn::Dropout dropout(p);
    dropout.set_path("attention.dropout");
    const nn::Context context{
        .training = true, .seed = 3, .step = 2, .sample_ids = at::arange(7, 9, at::kLong), .tokens = tokens};
    const Tensors x{draw("q", {2, 3, query_tokens, 4}), draw("k", {2, kv_heads, tokens, 4}),
                    draw("v", {2, kv_heads, tokens, 4})};
    const auto dy = draw("dy", x[0].sizes().vec());
    const Tensors whole{leaf(x[0]), leaf(x[1]), leaf(x[2])};
    const auto per_head = [](const at::Tensor& t) { return t.size(1) == 3 ? t : t.expand({-1, 3, -1, -1}); };
    auto scores = at::matmul(whole[0] * 0.5, per_head(whole[1]).transpose(-2, -1));
    at::Tensor key_mask, document_ids;
    if (documents) {  // in sample 0 of 4 tokens each, in sample 1 one of all
      document_ids = at::stack({at::arange(tokens, on(at::kLong)).div(4, "floor"), at::zeros({tokens}, on(at::kLong))});
      const auto of_queries = document_ids.narrow(1, 0, query_tokens).unsqueeze(2);
      scores = scores + of_queries.ne(document_ids.unsqueeze(1)).to(at::kDouble).mul(-1e4).unsqueeze(1);
    }
    if (masked) {
      key_mask = at::stack({at::arange(tokens, on(at::kLong)).remainder(3).ne(1), at::zeros({tokens}, on(at::kBool))});
      scores = scores + key_mask.logical_not().to(at::kDouble).mul(-1e4).view({2, 1, 1, tokens});
    }
    if (causal) {
      const auto i = at::arange(tokens, on(at::kLong));
      scores = scores.masked_fill(i > i.unsqueeze(1), -INFINITY);
    }
    auto probabilities = at::softmax(scores, -1);
    if (causal || masked)  // samples may be padded
      probabilities = dropout.apply_mask(probabilities, nn::probability_mask(dropout, context, probabilities,
                                                                             {.queries = {0, query_tokens},
                                                                              .keys = {0, tokens},
                                                                              .query_tokens = query_tokens,
                                                                              .tokens = tokens,
                                                                              .padded = true}));
    else
      probabilities = dropout.forward(probabilities, context);
    const auto expected = at::matmul(probabilities, per_head(whole[2]));
    expected.backward(dy);
    const Tensors slices{leaf(mine(x[0], 2)), leaf(mine(x[1], 2)), leaf(mine(x[2], 2))};
    const auto got = ring_attention(slices[0], slices[1], slices[2],
                                    {.group = group(),
                                     .query_tokens = query_tokens,
                                     .tokens = tokens,
                                     .pattern = {.causal = causal, .key_mask = key_mask, .documents = document_ids},
                                     .dropout = &dropout,
                                     .context = context});
    const double bound = masked ? 10 * kTiny : kTiny;  // if all keys are masked, scores are differences of -1e4
    EXPECT_LE(off(got, mine(expected, 2)), bound);
    got.backward(mine(dy, 2));
    for (std::size_t i = 0; i < 3; ++i) EXPECT_LE(off(slices[i].grad(), mine(whole[i].grad(), 2)), bound) << i;
  }
}

/// Whether a transfer began before one before it had ended.
bool overlapped(std::vector<trace::Span> spans) {
  EXPECT_GT(spans.size(), 1U);
  std::sort(spans.begin(), spans.end(), [](const auto& a, const auto& b) { return a.begin < b.begin; });
  double ended = 0;
  for (const auto& span : spans) {
    if (span.begin < ended) return true;
    ended = std::max(ended, span.end);
  }
  return false;
}

TEST(Overlap, IsOnUnlessDisabled) {
  TRIREME_ONLY_ON_CPU("reads when the host waits");
  const std::int64_t n = 10;
  for (const bool overlap : {true, false}) {
    const auto slice = leaf(mine(draw("x", {2, n, 4}), 1));
    // With overlap, a ring's hop is under way while the slice before it is used; without, it has ended.
    std::size_t arrived = 0;
    bool first = true;
    trace::start(world().device());
    gather_by_ring(
        slice.detach(), n, group(),
        [&](const shard::Range&, const at::Tensor&) {
          if (std::exchange(first, false)) arrived = trace::stop().size();
        },
        overlap);
    EXPECT_EQ(arrived, overlap ? 0U : 1U);
    const auto weight = leaf(draw("w", {3, 4}));
    const auto y = column_products_of_slices(slice, n, {{weight, at::Tensor()}}, group(), overlap).front();
    trace::start(world().device());
    y.sum().backward();
    EXPECT_EQ(overlapped(trace::stop()), overlap);
    const auto q = leaf(mine(draw("q", {2, 3, n, 4}), 2));
    const auto mixed = ring_attention(q, q, q, {.group = group(), .query_tokens = n, .tokens = n, .overlap = overlap});
    trace::start(world().device());
    mixed.sum().backward();
    EXPECT_EQ(overlapped(trace::stop()), overlap);
  }
}

}  // namespace
}  // namespace trireme::shardformer
