// Contract C1 for sequence parallelism: every mode and layout on the ranks of this program against one process, in
// float64.
#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/nn/block.h"
#include "tests/parity/layout.h"

namespace trireme::tests {
namespace {

/// Several small buckets.
constexpr const char* kSmallSequenceBuckets = "zero_bucket_size_in_m = 0.001";

struct SequenceSizes {
  const char* mode;
  std::int64_t tp = 1, sp = 1, zero = 0, heads = 3;
};

std::string sequence_keys(const SequenceSizes& s) {
  return fmt::format("sequence_parallelism_mode = \"{}\"\ntp_size = {}\nzero_stage = {}{}", s.mode, s.tp, s.zero,
                     s.sp > 1 ? fmt::format("\nsp_size = {}", s.sp) : "");
}

/// Every case in every layout that is tried in this world.
std::vector<Case> sequence_cases(const std::vector<SequenceSizes>& layouts, const std::vector<Case>& cases) {
  std::vector<Case> out;
  for (const auto& s : layouts) {
    const auto name = fmt::format("{}_tp{}_sp{}_zero{}", s.mode, s.tp, s.sp, s.zero);
    for (auto c : cross("hybrid_parallel", kSmallSequenceBuckets, {{name, sequence_keys(s)}}, cases)) {
      c.tp = s.tp * s.sp;
      c.sequence = true;
      c.heads = s.heads;
      out.push_back(std::move(c));
    }
  }
  return tried(std::move(out));
}

class Tokens : public testing::TestWithParam<Case> {};

TEST_P(Tokens, EqualsOneProcess) { expect_same_as_one_process(GetParam()); }

// 10 tokens on 2, 3 and 4 ranks, 3 heads on 2, 8 samples on 1 and 2; the second batch is ragged.
const std::vector<Case> kCases{
    Case{.name = "plain"}, Case{.name = "sgd_clip", .adamw = false, .max_norm = 0.5},
    Case{.name = "dropout", .dropout = 0.2},
    Case{.name = "everything", .micro_batch = 1, .adamw = false, .dropout = 0.2, .max_norm = 0.3, .recompute = true}};

INSTANTIATE_TEST_SUITE_P(
    SplitGather, Tokens,
    testing::ValuesIn(sequence_cases(
        {{"split_gather", 2}, {"split_gather", 2, 1, 2}, {"split_gather", 3}, {"split_gather", 4, 1, 0, 4}}, kCases)),
    kCaseName);

INSTANTIATE_TEST_SUITE_P(
    Ring, Tokens,
    testing::ValuesIn(sequence_cases({{"ring", 2}, {"ring", 2, 1, 2}, {"ring", 3}, {"ring", 4, 1, 0, 4}}, kCases)),
    kCaseName);

// 4 = dp 2 x sp 2, sp 2 x tp 2 (3 heads are 2 and 1 over tp: too few for all_to_all), and sp alone.
INSTANTIATE_TEST_SUITE_P(AllToAll, Tokens,
                         testing::ValuesIn(sequence_cases({{"all_to_all", 1, 2},
                                                           {"all_to_all", 1, 2, 1},
                                                           {"all_to_all", 1, 2, 2},
                                                           {"all_to_all", 1, 3},
                                                           {"all_to_all", 1, 4, 2, 6},
                                                           {"all_to_all", 2, 2, 0, 6}},
                                                          kCases)),
                         kCaseName);

INSTANTIATE_TEST_SUITE_P(RingAttn, Tokens,
                         testing::ValuesIn(sequence_cases({{"ring_attn", 1, 2},
                                                           {"ring_attn", 1, 2, 1},
                                                           {"ring_attn", 1, 2, 2},
                                                           {"ring_attn", 1, 3},
                                                           {"ring_attn", 1, 4, 2},
                                                           {"ring_attn", 2, 2, 1}},
                                                          kCases)),
                         kCaseName);

/// 197 tokens, the number that images of 224 pixels have in patches of 16.
const Case kManyTokens{.name = "many_tokens",
                       .global_batch = 4,
                       .steps = 1,
                       .dropout = 0.2,
                       .hidden = 12,
                       .layers = 2,
                       .pixels = 14,
                       .patch = 1};

INSTANTIATE_TEST_SUITE_P(Long, Tokens,
                         testing::ValuesIn(sequence_cases({{"split_gather", 4, 1, 0, 4},
                                                           {"ring", 4, 1, 0, 4},
                                                           {"all_to_all", 1, 4, 0, 6},
                                                           {"ring_attn", 1, 4}},
                                                          {kManyTokens})),
                         kCaseName);

/// Further cases of every mode, each in few layouts.
const std::vector<Case> kMore{
    Case{.name = "accumulate", .micro_batch = kUneven},
    Case{.name = "recompute", .recompute = true},
    Case{.name = "reduce_each_clip", .micro_batch = kUneven, .max_norm = 0.5, .reduce_each = true},
    Case{.name = "freeze", .freeze = {"*embeddings*", "*layer.0.*", "*query*", "*intermediate*bias", "*norm*weight"}},
    Case{.name = "lora", .micro_batch = 2, .dropout = 0.2, .recompute = true, .lora = adapters()},
    Case{.name = "one_layer", .dropout = 0.2, .layers = 1},
    kManyTokens,
    Case{.name = "two_tokens", .dropout = 0.2, .patch = 12},  // fewer than ranks
    Case{.name = "unused", .micro_batch = kUneven, .unused_block = true},
    Case{.name = "rare", .rare = true},
    Case{.name = "twice_recompute", .micro_batch = 2, .dropout = 0.2, .recompute = true, .twice = true}};

INSTANTIATE_TEST_SUITE_P(More, Tokens,
                         testing::ValuesIn(sequence_cases({{"split_gather", 2, 1, 1},
                                                           {"split_gather", 3},
                                                           {"ring", 2},
                                                           {"ring", 3},
                                                           {"all_to_all", 1, 2},
                                                           {"all_to_all", 1, 3},
                                                           {"ring_attn", 1, 2},
                                                           {"ring_attn", 1, 3}},
                                                          kMore)),
                         kCaseName);

class TokensPrecision : public testing::TestWithParam<Rounding> {};

TEST_P(TokensPrecision, StaysNearFloat64) {
  for (const auto& c :
       sequence_cases({{"split_gather", 2}, {"ring", 2}, {"all_to_all", 1, 2, 1}, {"ring_attn", 1, 2, 2}},
                      {Case{.name = "easy"},
                       Case{.name = "hard", .micro_batch = 1, .adamw = false, .max_norm = 0.5, .recompute = true}}))
    expect_near_float64(c, GetParam());
}

// The bounds are those of ZeRO's suite.
INSTANTIATE_TEST_SUITE_P(Bounds, TokensPrecision,
                         testing::Values(Rounding{"fp32", 1e-6, 1e-5}, Rounding{"bf16", 2e-2, 5e-2},
                                         Rounding{"fp16", 4e-3, 1e-2}),
                         [](const auto& value) { return std::string(value.param.precision); });

/// Payload elements that this rank sends along an axis in the first step, by operation.
std::map<std::string, std::uint64_t> sent_in_a_step(const Case& c, const std::string& axis, std::uint64_t& samples) {
  const auto totals = [&] {
    std::map<std::string, std::uint64_t> out;
    for (const auto& [key, entry] : world().comm_stats().totals())
      if (key.first == axis) out[key.second] = entry.payload_elements;
    return out;
  };
  Booster booster(world(), make_plugin(c), make_options(c));
  auto run = booster.boost(make_inputs(c));
  run.loader->start_epoch(0);
  const auto batch = *run.loader->next();
  samples = static_cast<std::uint64_t>(batch.micro.front().size());
  const auto before = totals();
  run.train_step(batch);
  auto sent = totals();
  for (const auto& [op, elements] : before) sent[op] -= elements;
  return sent;
}

// Elements of activations sent in a step by the formulas of docs/parallelism.md, for b samples a rank, n tokens, width
// h and l layers. The last layer computes the class token alone.
constexpr std::uint64_t kTrafficTokens = 10, kTrafficLayers = 3;
const std::vector<Case> kTraffic{Case{.name = "traffic", .steps = 1, .layers = 3},
                                 Case{.name = "traffic_recompute", .steps = 1, .recompute = true, .layers = 3}};

TEST(TokensRules, SplitGatherTrafficMatchesTheFormulas) {
  constexpr auto n = kTrafficTokens, l = kTrafficLayers;
  for (const auto& c : sequence_cases({{"split_gather", 2}, {"split_gather", 3}}, kTraffic)) {
    std::uint64_t b = 0;
    auto sent = sent_in_a_step(c, "tp", b);
    const std::uint64_t h = static_cast<std::uint64_t>(c.hidden), times = c.recompute ? 2 : 1;
    // Forward, the column-parallel products of attention and MLP gather, the row-parallel ones scatter. Backward, the
    // row-parallel ones gather, the others gather x again and scatter its gradient, and the embeddings gather theirs.
    const auto gathered = times * ((l - 1) * 2 * b * n * h + b * n * h + b * h) + (l - 1) * 4 * b * n * h + b * n * h +
                          3 * b * h + b * n * h;
    const auto scattered = times * ((l - 1) * 2 * b * n * h + 2 * b * h) + (l - 1) * 2 * b * n * h + b * n * h + b * h;
    EXPECT_EQ(sent["all_gather"], gathered) << c.name;
    EXPECT_EQ(sent["reduce_scatter"], scattered) << c.name;
    // These are two norms and two biases a layer, the classifier's input, the parallel loss and the gradient norm.
    EXPECT_EQ(sent["all_reduce"], l * 6 * h + b * h + 4 * b + 1) << c.name;
    EXPECT_EQ(sent["broadcast"], times * b * h) << c.name;
  }
}

/// Tokens of the slice of the rank `ahead` of this one in a group of `size` neighbours.
std::uint64_t slice(std::int64_t tokens, std::int64_t size, int ahead = 0) {
  const auto ranks = static_cast<int>(size);
  return static_cast<std::uint64_t>(shard::split(tokens, ranks, (world().rank() + ahead) % ranks).size());
}

TEST(TokensRules, RingTrafficMatchesTheFormulas) {
  constexpr auto n = kTrafficTokens, l = kTrafficLayers;
  if (world().size() > 3) GTEST_SKIP() << "for 2 and 3 ranks";
  for (const auto& c : sequence_cases({{"ring", 2}, {"ring", 3}}, kTraffic)) {
    std::uint64_t b = 0;
    auto sent = sent_in_a_step(c, "tp", b);
    const std::uint64_t h = static_cast<std::uint64_t>(c.hidden), times = c.recompute ? 2 : 1;
    // Tokens that a rank sends in a ring to gather (g) and to reduce (s), of n tokens and of the class token (g1, s1).
    const auto g = n - slice(n, c.tp, 1), s = n - slice(n, c.tp), g1 = 1 - slice(1, c.tp, 1), s1 = 1 - slice(1, c.tp);
    const auto forward = (l - 1) * (2 * g + 2 * s) + g + 2 * s1 + g1;
    const auto backward = (l - 1) * (4 * g + 2 * s) + s + g + 3 * g1 + s1;
    EXPECT_EQ(sent["send"], b * h * (times * forward + backward)) << c.name;
    EXPECT_EQ(sent["all_gather"], b * n * h) << c.name;
    EXPECT_EQ(sent["reduce_scatter"], 0U);
    EXPECT_EQ(sent["all_reduce"], l * 6 * h + b * h + 4 * b + 1) << c.name;
  }
}

TEST(TokensRules, AllToAllTrafficMatchesTheFormulas) {
  constexpr auto n = kTrafficTokens, l = kTrafficLayers;
  if (world().size() > 3) GTEST_SKIP() << "for 2 and 3 ranks";
  for (const auto& c : sequence_cases({{"all_to_all", 1, 2}, {"all_to_all", 1, 3}}, kTraffic)) {
    std::uint64_t b = 0;
    auto sent = sent_in_a_step(c, "sp", b);
    const std::uint64_t h = static_cast<std::uint64_t>(c.hidden), times = c.recompute ? 2 : 1;
    const auto s = slice(n, c.tp), s1 = slice(1, c.tp), heads = slice(c.heads, c.tp) * h / 3;
    const auto forward = (l - 1) * (3 * s * h + n * heads) + (2 * s + s1) * h + heads;
    const auto backward = (l - 1) * (s * h + 3 * n * heads) + s1 * h + (2 * n + 1) * heads;
    EXPECT_EQ(sent["all_to_all"], b * (times * forward + backward)) << c.name;
    EXPECT_EQ(sent["broadcast"], times * b * h) << c.name;
  }
}

TEST(TokensRules, RingAttentionTrafficMatchesTheFormulas) {
  constexpr auto n = kTrafficTokens, l = kTrafficLayers;
  if (world().size() > 3) GTEST_SKIP() << "for 2 and 3 ranks";
  for (const auto& c : sequence_cases({{"ring_attn", 1, 2}, {"ring_attn", 1, 3}}, kTraffic)) {
    std::uint64_t b = 0;
    auto sent = sent_in_a_step(c, "sp", b);
    const std::uint64_t h = static_cast<std::uint64_t>(c.hidden), times = c.recompute ? 2 : 1;
    const auto g = n - slice(n, c.tp, 1);
    EXPECT_EQ(sent["send"], l * 2 * b * h * (times * g + g + n)) << c.name;
    EXPECT_EQ(sent["broadcast"], times * b * h) << c.name;
  }
}

// ZeRO shards over the ranks that split the tokens too.
TEST(TokensRules, ARankHoldsItsShareOfTheState) {
  for (const auto& c : sequence_cases({{"ring_attn", 1, 2, 2}}, {Case{.name = "memory"}})) {
    Booster booster(world(), make_plugin(c), make_options(c));
    const auto run = booster.boost(make_inputs(c));
    std::int64_t held = 0, full = 0;
    for (const auto& part : run.model->weights()) {
      held += part.placement.local_numel();
      full += part.placement.full_numel();
    }
    const auto share = static_cast<double>(full) / world().size();
    EXPECT_NEAR(static_cast<double>(held), share, 0.2 * share) << c.name;
  }
}

}  // namespace
}  // namespace trireme::tests
