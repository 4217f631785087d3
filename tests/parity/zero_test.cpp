// Contract C1 for ZeRO, stages 1 and 2: every case on the ranks of this program against one process, in float64.
#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <cmath>

#include "core/base/error.h"
#include "core/nn/block.h"
#include "tests/parity/layout.h"

namespace trireme::tests {
namespace {

/// Several small buckets; some parameters are larger than a bucket, some smaller than a rank's part of one.
constexpr const char* kSmallBuckets = "reduce_bucket_size_in_m = 0.001";

std::vector<Case> zero_cases(const std::vector<Layout>& layouts, const std::vector<Case>& cases) {
  return cross("low_level_zero", kSmallBuckets, layouts, cases);
}

class Zero : public testing::TestWithParam<Case> {};

TEST_P(Zero, EqualsOneProcess) { expect_same_as_one_process(GetParam()); }

// 11 samples in batches of 8: the second is ragged, with 3 samples, fewer than four ranks.
INSTANTIATE_TEST_SUITE_P(
    Stages, Zero,
    testing::ValuesIn(zero_cases(
        {{"stage1", "stage = 1"}, {"stage2", "stage = 2"}},
        {Case{.name = "plain"}, Case{.name = "sgd", .adamw = false},
         Case{.name = "one_bucket", .plugin = "reduce_bucket_size_in_m = 12"},
         Case{.name = "accumulate", .micro_batch = kUneven}, Case{.name = "clip", .max_norm = 0.5},
         Case{.name = "reduce_each_clip", .micro_batch = kUneven, .max_norm = 0.5, .reduce_each = true},
         Case{.name = "dropout_recompute", .dropout = 0.3, .recompute = true},
         Case{.name = "everything",
              .micro_batch = 1,
              .adamw = false,
              .dropout = 0.2,
              .max_norm = 0.3,
              .recompute = true},
         Case{.name = "two_epochs", .samples = 11, .steps = 4, .max_norm = 0.5},
         Case{.name = "freeze_no_decay", .freeze = {"*layer.0.*", "cls_token"}, .no_decay = {"*bias", "layernorm"}},
         Case{.name = "lora", .micro_batch = 2, .max_norm = 0.5, .lora = adapters()},
         Case{.name = "unused", .micro_batch = kUneven, .unused_block = true}, Case{.name = "rare", .rare = true},
         Case{.name = "adapted", .max_norm = 0.5, .adapted = true},
         Case{.name = "rare_accumulate", .micro_batch = kUneven, .adamw = false, .rare = true},
         Case{.name = "unused_recompute_sgd", .adamw = false, .recompute = true, .unused_block = true}})),
    kCaseName);

INSTANTIATE_TEST_SUITE_P(
    Options, Zero,
    testing::ValuesIn(zero_cases({{"late", "stage = 2\noverlap_communication = false"},
                                  {"gather", "stage = 1\noverlap_allgather = true"},
                                  {"offload", "stage = 2\ncpu_offload = true"},
                                  {"hold", "stage = 2\nno_sync = true"}},
                                 {Case{.name = "accumulate_clip", .micro_batch = kUneven, .max_norm = 0.5},
                                  Case{.name = "recompute", .dropout = 0.3, .recompute = true}})),
    kCaseName);

TEST(ZeroGroups, TwoCopiesEqualOneProcess) {
  if (world().size() % 2 != 0) GTEST_SKIP() << "for an even number of ranks";
  for (const char* stage : {"stage = 1", "stage = 2"})
    for (auto c : zero_cases({{"copies", fmt::format("{}\nextra_dp_size = 2", stage)}},
                             {Case{.name = "clip", .micro_batch = kUneven, .max_norm = 0.5},
                              Case{.name = "unused", .unused_block = true}}))
      expect_same_as_one_process(c);
}

class ZeroPrecision : public testing::TestWithParam<Rounding> {};

// The bounds of plain data parallelism are 1e-6 and 1e-5, 1e-2 and 5e-2, 2e-3 and 1e-2, because it keeps float32
// weights and rounds only in products; here weights, activations and gradients are in half precision.
TEST_P(ZeroPrecision, StaysNearFloat64) {
  for (const auto& c :
       zero_cases({{"stage1", "stage = 1"}, {"stage2", "stage = 2\ngrad_accum_dtype = \"fp32\""}},
                  {Case{.name = "easy"},
                   Case{.name = "hard", .micro_batch = 1, .adamw = false, .max_norm = 0.5, .recompute = true}}))
    expect_near_float64(c, GetParam());
}

INSTANTIATE_TEST_SUITE_P(Bounds, ZeroPrecision,
                         testing::Values(Rounding{"fp32", 1e-6, 1e-5}, Rounding{"bf16", 2e-2, 5e-2},
                                         Rounding{"fp16", 4e-3, 1e-2}),
                         [](const auto& value) { return std::string(value.param.precision); });

/// Compares a case in half precision, or with gradients rounded for communication, with float64.
void expect_losses_near(Case c, double bound) {
  c.samples = 19;
  c.steps = 3;
  auto exact = c;
  exact.precision = "fp64";
  const auto expected = reference(exact), got = by_train_step(c);
  for (std::size_t step = 0; step < expected.losses.size(); ++step)
    EXPECT_NEAR(got.losses.at(step), expected.losses[step], bound * expected.losses[step]) << c.name;
}

TEST(ZeroRules, OptionsThatRoundStayNearFloat64) {
  const auto one = [](const char* keys, const char* precision) {
    return zero_cases({{"rounds", keys}},
                      {Case{.name = keys, .micro_batch = 4, .max_norm = 0.5, .precision = precision}})
        .front();
  };
  expect_losses_near(one("communication_dtype = \"bf16\"", "fp32"), 2e-3);
  expect_losses_near(one("communication_dtype = \"fp32\"\ngrad_accum_dtype = \"fp32\"\nstage = 2", "bf16"), 2e-2);
  expect_losses_near(one("master_weights = false", "bf16"), 5e-2);
  auto without_masters = one("master_weights = false", "fp16");
  without_masters.adamw = false;  // fp16 cannot hold its second moments
  expect_losses_near(without_masters, 2e-2);
  expect_losses_near(one("cpu_offload = true", "bf16"), 2e-2);
  expect_losses_near(one("cpu_offload = true\nstage = 2", "fp16"), 4e-3);
}

TEST(ZeroRules, NormTypeInfIsTheLargestElement) {
  const auto c = zero_cases({{"inf", "norm_type = \"inf\""}}, {Case{.name = "norm", .steps = 1}}).front();
  double largest = 0;
  const auto& expected = reference(c);
  for (const auto& [name, gradient] : expected.gradients.front())
    largest = std::max(largest, gradient.abs().max().item<double>());
  EXPECT_NEAR(by_pieces(c).norms.front(), largest, kBound * largest);
}

TEST(ZeroRules, AStepThatOverflowsIsSkippedOnEveryRank) {
  for (auto c : zero_cases({{"stage1", "stage = 1"}, {"stage2", "stage = 2"}},
                           {Case{.name = "overflow", .steps = 1, .precision = "fp16", .initial_scale = 1e30}})) {
    const auto trace = by_train_step(c);
    for (const auto& [name, value] : start(c))
      EXPECT_TRUE(at::equal(trace.weights.at(name), value.to(at::kFloat))) << name;
  }
}

TEST(ZeroRules, AGradientThatIsNotFiniteChangesNothing) {
  for (const auto& c : zero_cases({{"stage1", "stage = 1"}, {"stage2", "stage = 2"}, {"offload", "cpu_offload = true"}},
                                  {Case{.name = "not_finite", .micro_batch = 2, .max_norm = 0.5, .precision = "fp32"}}))
    expect_not_finite_is_skipped(c);
}

// Bytes per rank and elements per step by the formulas of docs/zero.md, for N ranks, P elements and 2 % of padding.
TEST(ZeroRules, MemoryAndTrafficMatchTheFormulas) {
  const auto n = world().size();
  struct Row {
    const char *precision, *keys;
    double whole, shared;  // bytes an element: held by each rank, and sharded
    std::int64_t micro_batch;
    double reduced;  // in a step, as a multiple of P
  };
  const std::vector<Row> rows{{"fp32", "stage = 1", 8, 8, 8, 1},
                              {"fp32", "stage = 2", 4, 12, 8, 1},
                              {"bf16", "stage = 1", 4, 12, 8, 1},
                              {"bf16", "stage = 2", 2, 14, 8, 1},
                              {"fp32", "stage = 1", 8, 8, 1, 1},
                              {"fp32", "stage = 2", 4, 12, 1, std::ceil(8.0 / n)},
                              {"fp32", "stage = 2\nno_sync = true", 4, 12, 1, 1}};
  for (const auto& row : rows) {
    const Case c{.name = "formulas",
                 .samples = 24,
                 .micro_batch = row.micro_batch,
                 .hidden = 60,
                 .layers = 4,
                 .plugin = std::string(row.keys) + "\nreduce_bucket_size_in_m = 0.02",
                 .precision = row.precision,
                 .plugin_name = "low_level_zero"};
    const auto model = make_model(c);
    const auto p = static_cast<double>(nn::parameter_count(*model));
    const auto held = one_step(c);
    const double bytes = p * (row.whole + row.shared / n);
    EXPECT_GE(held.bytes(), bytes - 1) << row.keys;
    EXPECT_LE(held.bytes(), 1.02 * bytes) << row.keys;
    EXPECT_EQ(held.gathered > 0, n > 1);
    if (n == 1) continue;
    EXPECT_NEAR(static_cast<double>(held.reduced), row.reduced * p, 0.02 * row.reduced * p) << row.keys;
    EXPECT_NEAR(static_cast<double>(held.gathered), p, 0.02 * p) << row.keys;
  }
}

}  // namespace
}  // namespace trireme::tests
