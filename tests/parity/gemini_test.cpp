// Contract C1 for ZeRO, stage 3: every case on the ranks of this program against one process, in float64.
#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <cmath>

#include "core/base/error.h"
#include "core/nn/block.h"
#include "core/train/evaluate.h"
#include "tests/parity/layout.h"

namespace trireme::tests {
namespace {

/// Several chunks a block.
constexpr const char* kSmallChunks = "chunk_config = 1000";

std::vector<Case> gemini_cases(const std::vector<Layout>& layouts, const std::vector<Case>& cases) {
  return cross("gemini", kSmallChunks, layouts, cases);
}

class Gemini : public testing::TestWithParam<Case> {};

TEST_P(Gemini, EqualsOneProcess) { expect_same_as_one_process(GetParam()); }

// 11 samples in batches of 8: the second is ragged, with 3 samples, fewer than four ranks.
INSTANTIATE_TEST_SUITE_P(
    Cases, Gemini,
    testing::ValuesIn(gemini_cases(
        {{"stage3", ""}},
        {Case{.name = "plain"},
         Case{.name = "sgd", .adamw = false},
         Case{.name = "searched_chunks", .plugin = "hidden_dim = 64"},
         Case{.name = "accumulate", .micro_batch = kUneven},
         Case{.name = "clip", .max_norm = 0.5},
         Case{.name = "hold", .micro_batch = kUneven, .max_norm = 0.5, .plugin = "enable_gradient_accumulation = true"},
         Case{.name = "reduce_each", .micro_batch = kUneven, .max_norm = 0.5, .reduce_each = true},
         Case{.name = "dropout_recompute", .dropout = 0.3, .recompute = true},
         Case{.name = "everything",
              .micro_batch = 1,
              .adamw = false,
              .dropout = 0.2,
              .max_norm = 0.3,
              .recompute = true},
         Case{.name = "two_epochs", .samples = 11, .steps = 4, .max_norm = 0.5},
         Case{.name = "lora", .micro_batch = 2, .max_norm = 0.5, .lora = adapters()},
         Case{.name = "freeze_no_decay", .freeze = {"*layer.0.*", "cls_token"}, .no_decay = {"*bias", "layernorm"}},
         Case{.name = "unused", .micro_batch = kUneven, .unused_block = true},
         Case{.name = "unused_recompute_sgd", .adamw = false, .recompute = true, .unused_block = true},
         Case{.name = "adapted", .max_norm = 0.5, .adapted = true},
         Case{.name = "rare", .rare = true},
         Case{.name = "rare_alone", .micro_batch = 2, .freeze = {"*embeddings*", "*cls_token*"}, .rare = true},
         Case{.name = "rare_accumulate", .micro_batch = kUneven, .rare = true},
         Case{.name = "rare_recompute", .adamw = false, .recompute = true, .rare = true},
         Case{.name = "balance", .micro_batch = kUneven, .recompute = true, .balance = true},
         Case{.name = "twice", .micro_batch = kUneven, .twice = true},
         Case{.name = "twice_recompute", .dropout = 0.2, .recompute = true, .twice = true}})),
    kCaseName);

INSTANTIATE_TEST_SUITE_P(
    Options, Gemini,
    testing::ValuesIn(gemini_cases({{"prefetch1", "max_prefetch = 1"},
                                    {"prefetch3", "max_prefetch = 3"},
                                    {"half_stays", "shard_param_frac = 0.5\nmax_prefetch = 1"},
                                    {"all_stay", "strict_ddp_mode = true"},
                                    {"offload", "offload_optim_frac = 1\noffload_param_frac = 1"},
                                    {"offload_some", "offload_optim_frac = 0.6\noffload_param_frac = 0.3"},
                                    {"late", "enable_async_reduce = false"}},
                                   {Case{.name = "accumulate_clip", .micro_batch = kUneven, .max_norm = 0.5},
                                    Case{.name = "recompute", .dropout = 0.3, .recompute = true},
                                    Case{.name = "twice", .twice = true}})),
    kCaseName);

// max_norm, a key of [train], may be set in the plugin's section instead.
TEST(GeminiKeys, MaxNormOfTheSectionClips) {
  auto c = gemini_cases({{"clip", ""}}, {Case{.name = "section", .micro_batch = 1, .max_norm = 0.3}}).front();
  const auto& expected = reference(c);
  c.max_norm = 0;
  c.plugin += "\nmax_norm = 0.3";
  expect_same(c, expected);
}

// With a search range of 0 the chunks have the smallest size, with a larger range a size within it.
TEST(GeminiKeys, SearchKeysGiveTheSizeOfChunks) {
  const auto chunks = [](const std::string& keys) {
    const Case c{.name = "chunks", .hidden = 60, .layers = 4, .plugin = keys, .plugin_name = "gemini"};
    Booster booster(world(), make_plugin(c), make_options(c));
    std::string line;
    for (const auto& note : booster.boost(make_inputs(c)).model->report().notes)
      if (const auto at = note.find("; "); note.find(" chunks") != std::string::npos) line = note.substr(at + 2);
    return std::stoi(line);
  };
  EXPECT_EQ(chunks("min_chunk_size_m = 0.001\nsearch_range_m = 0"), chunks("chunk_config = 1049"));
  EXPECT_EQ(chunks("min_chunk_size_m = 0.008\nsearch_range_m = 0"), chunks("chunk_config = 8389"));
  EXPECT_LT(chunks("chunk_config = 8389"), chunks("chunk_config = 1049"));
  const auto searched = chunks("min_chunk_size_m = 0.001\nsearch_range_m = 0.007\nhidden_dim = 64");
  EXPECT_LE(searched, chunks("chunk_config = 1049"));
  EXPECT_GE(searched, chunks("chunk_config = 8389"));
}

TEST(GeminiKeys, NormTypeInfIsTheLargestElement) {
  const auto c = gemini_cases({{"inf", "norm_type = \"inf\""}}, {Case{.name = "norm", .steps = 1}}).front();
  const auto& expected = reference(c);
  double largest = 0;
  for (const auto& [name, gradient] : expected.gradients.front())
    largest = std::max(largest, gradient.abs().max().item<double>());
  EXPECT_NEAR(by_pieces(c).norms.front(), largest, kBound * largest);
}

TEST(GeminiGroups, TwoCopiesEqualOneProcess) {
  if (world().size() % 2 != 0) GTEST_SKIP() << "for an even number of ranks";
  for (const auto& c :
       gemini_cases({{"copies", "extra_dp_size = 2"}}, {Case{.name = "clip", .micro_batch = kUneven, .max_norm = 0.5},
                                                        Case{.name = "unused", .unused_block = true}}))
    expect_same_as_one_process(c);
}

class GeminiPrecision : public testing::TestWithParam<Rounding> {};

// The bounds are those of stages 1 and 2.
TEST_P(GeminiPrecision, StaysNearFloat64) {
  for (const auto& c :
       gemini_cases({{"stage3", ""}},
                    {Case{.name = "easy"},
                     Case{.name = "hard", .micro_batch = 1, .adamw = false, .max_norm = 0.5, .recompute = true}}))
    expect_near_float64(c, GetParam());
}

INSTANTIATE_TEST_SUITE_P(Bounds, GeminiPrecision,
                         testing::Values(Rounding{"fp32", 1e-6, 1e-5}, Rounding{"bf16", 2e-2, 5e-2},
                                         Rounding{"fp16", 4e-3, 1e-2}),
                         [](const auto& value) { return std::string(value.param.precision); });

/// Bytes of the largest block's weights, without padding.
double largest_block(nn::Model& model, double bytes_an_element) {
  double largest = 0;
  for (const auto& block : model.blocks()) {
    double elements = 0;
    for (const auto& value : block->parameters()) elements += static_cast<double>(value.numel());
    largest = std::max(largest, elements);
  }
  return largest * bytes_an_element;
}

// Bytes per rank and elements per step by the formulas of docs/zero.md, for N ranks, P elements and k microbatches.
TEST(GeminiRules, MemoryAndTrafficMatchTheFormulas) {
  const auto n = world().size();
  struct Row {
    const char *precision, *keys;
    std::int64_t micro_batch, ahead;
    bool hold;
  };
  const std::vector<Row> rows{{"fp32", "", 8, 0, false},
                              {"bf16", "", 8, 0, false},
                              {"fp32", "max_prefetch = 1", 8, 1, false},
                              {"fp32", "", 1, 0, false},
                              {"fp32", "enable_gradient_accumulation = true", 1, 0, true}};
  for (const auto& row : rows) {
    SCOPED_TRACE(fmt::format("{} {} micro {}", row.precision, row.keys, row.micro_batch));
    const Case c{.name = "formulas",
                 .samples = 24,
                 .micro_batch = row.micro_batch,
                 .hidden = 60,
                 .layers = 4,
                 .plugin = row.keys,
                 .precision = row.precision,
                 .plugin_name = "gemini"};
    const auto model = make_model(c);
    const auto p = static_cast<double>(nn::parameter_count(*model));
    const auto held = one_step(c);
    EXPECT_GE(held.bytes(), 16 * p / n - 1);
    EXPECT_LE(held.bytes(), 1.02 * 16 * p / n);
    const double block = largest_block(*model, std::string(row.precision) == "bf16" ? 2 : 4);
    EXPECT_GE(static_cast<double>(held.peak_gathered), block);
    EXPECT_LE(static_cast<double>(held.peak_gathered), 1.02 * static_cast<double>(2 + row.ahead) * block);
    if (n == 1) continue;
    const double k = std::ceil(8.0 / n / static_cast<double>(row.micro_batch));
    EXPECT_NEAR(static_cast<double>(held.reduced), (row.hold ? 1 : k) * p, 0.02 * k * p);
    // Weights are gathered twice a microbatch, but the last block and the head once when their order is known.
    EXPECT_LE(static_cast<double>(held.gathered), 1.02 * 2 * k * p);
    EXPECT_GE(static_cast<double>(held.gathered), (2 * p - 2 * block / 4) * k);
  }
}

TEST(GeminiRules, AGradientThatIsNotFiniteChangesNothing) {
  for (const auto& c : gemini_cases({{"stage3", ""}, {"offload", "offload_optim_frac = 1\noffload_param_frac = 1"}},
                                    {Case{.name = "not_finite", .max_norm = 0.5, .precision = "fp32"}}))
    expect_not_finite_is_skipped(c);
}

// Ranks without samples take part in the gathers.
TEST(GeminiRules, EvaluatesWithEmptyBatches) {
  const auto c = gemini_cases({{"stage3", ""}}, {Case{.name = "evaluation", .samples = 19}}).front();
  Booster booster(world(), make_plugin(c), make_options(c));
  auto run = booster.boost(make_inputs(c));
  double loss = 0;
  for (const std::int64_t batch : {1, 3, 19}) {
    auto loader = run.evaluation_loader(make_data(c), batch);
    const auto result = train::evaluate(run, *loader);
    EXPECT_EQ(result.samples, 19);
    if (loss != 0) {
      EXPECT_NEAR(result.loss, loss, 1e-12 * loss);
    }
    loss = result.loss;
  }
}

}  // namespace
}  // namespace trireme::tests
