// Contract C1 for pipelines: every schedule, combined with the other axes, against one process, in float64.
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include "tests/parity/layout.h"

namespace trireme::tests {
namespace {

struct Pipe {
  const char* schedule;
  std::int64_t pp, tp = 1, zero = 0;
  const char* more = "";
  std::int64_t heads = 3;
};

std::vector<Case> pipeline_cases(const std::vector<Pipe>& pipes, const std::vector<Case>& cases) {
  std::vector<Case> out;
  for (const auto& [schedule, pp, tp, zero, more, heads] : pipes)
    for (auto c : cross("hybrid_parallel", "zero_bucket_size_in_m = 0.001",
                        {{fmt::format("{}_pp{}_tp{}_zero{}", schedule, pp, tp, zero),
                          fmt::format("pp_style = \"{}\"\npp_size = {}\ntp_size = {}\nzero_stage = {}\n{}", schedule,
                                      pp, tp, zero, more)}},
                        cases)) {
      c.tp = tp;
      c.pp = pp;
      c.heads = heads;
      // Each stage needs a block; embeddings and head are two of them.
      const std::int64_t stages = pp * (schedule == std::string("zbv") || *more != '\0' ? 2 : 1);
      c.layers = std::max(c.layers, stages - 2);
      out.push_back(std::move(c));
    }
  return tried(std::move(out));
}

constexpr const char* kTwoChunks = "num_model_chunks = 2";
const std::vector<Pipe> kSchedules{
    {"gpipe", 2}, {"1f1b", 2}, {"interleaved", 2, 1, 0, kTwoChunks}, {"zb_h1", 2}, {"zbv", 2},
    {"gpipe", 3}, {"1f1b", 3}, {"interleaved", 3, 1, 0, kTwoChunks}, {"zb_h1", 3}, {"zbv", 3},
    {"gpipe", 4}, {"1f1b", 4}, {"interleaved", 4, 1, 0, kTwoChunks}, {"zb_h1", 4}, {"zbv", 4}};

class Pipeline : public testing::TestWithParam<Case> {};

TEST_P(Pipeline, EqualsOneProcess) { expect_same_as_one_process(GetParam()); }

// 8 samples in 1 to 8 microbatches; 11 samples in batches of 8: the second is ragged.
INSTANTIATE_TEST_SUITE_P(
    Schedules, Pipeline,
    testing::ValuesIn(pipeline_cases(
        kSchedules,
        {Case{.name = "one"}, Case{.name = "many", .micro_batch = 1, .adamw = false, .max_norm = 0.5},
         Case{.name = "everything", .micro_batch = 3, .dropout = 0.2, .max_norm = 0.3, .recompute = true}})),
    kCaseName);

INSTANTIATE_TEST_SUITE_P(
    Beside, Pipeline,
    testing::ValuesIn(pipeline_cases(
        {{"1f1b", 2, 2, 0},
         {"1f1b", 2, 1, 1},
         {"1f1b", 2, 1, 2},
         {"zb_h1", 2, 1, 2},
         {"zbv", 2, 2, 0},
         {"interleaved", 2, 1, 1, kTwoChunks},
         {"1f1b", 2, 2, 1},
         {"zb_h1", 2, 2, 2},
         {"1f1b", 2, 1, 3},
         {"interleaved", 2, 1, 3, kTwoChunks},
         {"zb_h1", 2, 2, 3},
         {"zbv", 2, 1, 3}},
        {Case{.name = "plain", .micro_batch = 1, .max_norm = 0.5},
         Case{.name = "dropout_recompute", .micro_batch = 2, .adamw = false, .dropout = 0.3, .recompute = true}})),
    kCaseName);

INSTANTIATE_TEST_SUITE_P(
    Cases, Pipeline,
    testing::ValuesIn(pipeline_cases(
        {{"1f1b", 2}, {"zb_h1", 2}, {"zbv", 2}, {"1f1b", 2, 1, 2}, {"1f1b", 2, 1, 3}, {"zb_h1", 2, 1, 3}},
        {Case{.name = "uniform", .micro_batch = 2, .plugin = "pp_partition = \"uniform\""},
         Case{.name = "parameters", .micro_batch = 2, .plugin = "pp_partition = \"parameters\""},
         Case{.name = "timed", .micro_batch = 3, .dropout = 0.2, .plugin = "pp_partition = \"timed\""},
         Case{.name = "two_epochs", .samples = 11, .micro_batch = 2, .steps = 4},
         Case{.name = "freeze_no_decay",
              .micro_batch = 2,
              .freeze = {"*layer.0.*", "cls_token"},
              .no_decay = {"*bias", "layernorm"}},
         Case{.name = "freeze_first_stage", .micro_batch = 2, .freeze = {"*embeddings*", "*layer.0.*"}},
         Case{.name = "lora", .micro_batch = 2, .dropout = 0.2, .max_norm = 0.5, .lora = adapters()},
         Case{.name = "lora_recompute", .micro_batch = 1, .recompute = true, .lora = adapters()},
         Case{.name = "unused", .micro_batch = 2, .unused_block = true},
         Case{.name = "rare", .micro_batch = 2, .rare = true},
         Case{.name = "twice", .micro_batch = 2, .max_norm = 0.5, .twice = true},
         Case{.name = "twice_each", .micro_batch = 1, .max_norm = 0.5, .twice = true, .reduce_each = true},
         Case{.name = "twice_rare", .micro_batch = 2, .adamw = false, .rare = true, .twice = true},
         Case{.name = "twice_recompute", .micro_batch = 2, .dropout = 0.2, .recompute = true, .twice = true},
         Case{.name = "adapted", .micro_batch = 2, .adapted = true}})),
    kCaseName);

// The ranks of a pipeline are neighbours, or each has its data-parallel ranks as neighbours.
TEST(PipelineLayout, AxesInEitherOrder) {
  if (world().size() != 4) GTEST_SKIP() << "for 4 ranks";
  for (const auto& c :
       pipeline_cases({{"1f1b", 2}, {"1f1b", 2, 1, 2}, {"zb_h1", 2, 1, 3}},
                      {Case{.name = "inside", .micro_batch = 2, .max_norm = 0.5, .plugin = "dp_outside = false"}})) {
    std::vector<std::pair<std::string, int>> axes;
    for (const auto& [kind, size] : make_plugin(c)->axes(4)) axes.emplace_back(kind.name, size);
    EXPECT_EQ(axes, (decltype(axes){{"pp", 2}, {"dp", 2}, {"tp", 1}}));
    expect_same_as_one_process(c);
  }
}

// The gradient of a parameter that three or four stages share is the sum over all of them, also those in the middle.
INSTANTIATE_TEST_SUITE_P(SharedByAll, Pipeline,
                         testing::ValuesIn(pipeline_cases(
                             {{"1f1b", 3}, {"zb_h1", 3}, {"zbv", 3}, {"gpipe", 4}, {"1f1b", 4}, {"zb_h1", 3, 1, 3}},
                             {Case{.name = "everywhere",
                                   .micro_batch = 2,
                                   .max_norm = 0.5,
                                   .plugin = "pp_partition = \"uniform\"\nzero_bucket_size_in_m = 0.001",
                                   .twice = true,
                                   .everywhere = true}})),
                         kCaseName);

// With frozen embeddings and the rare block, the outputs of the first stage have a graph only in the microbatch with
// sample 3.
INSTANTIATE_TEST_SUITE_P(
    SeldomTrained, Pipeline,
    testing::ValuesIn(pipeline_cases(
        {{"1f1b", 2}, {"zb_h1", 2}, {"gpipe", 2}, {"1f1b", 2, 1, 2}, {"1f1b", 2, 1, 3}, {"zb_h1", 2, 1, 3}},
        {Case{.name = "rare_alone",
              .micro_batch = 2,
              .freeze = {"*embeddings*", "*cls_token*", "*position*"},
              .plugin = "num_layers_per_stage = [2, 3]\nzero_bucket_size_in_m = 0.001",
              .rare = true},
         Case{.name = "rare_alone_recomputed",
              .micro_batch = 2,
              .recompute = true,
              .freeze = {"*embeddings*", "*cls_token*", "*position*"},
              .plugin = "num_layers_per_stage = [2, 3]",
              .rare = true}})),
    kCaseName);

// The first layer of a stage works in place; a stage has one layer or two.
INSTANTIATE_TEST_SUITE_P(
    InPlace, Pipeline,
    testing::ValuesIn(pipeline_cases({{"gpipe", 4}, {"zb_h1", 4}, {"zbv", 2}, {"zbv", 2, 1, 2}},
                                     {Case{.name = "in_place", .micro_batch = 2, .adapted = true, .in_place = true}})),
    kCaseName);

class PipelinePrecision : public testing::TestWithParam<Rounding> {};

TEST_P(PipelinePrecision, StaysNearFloat64) {
  for (const auto& c :
       pipeline_cases({{"1f1b", 2}, {"zbv", 2}, {"zb_h1", 2, 1, 2}, {"zb_h1", 2, 1, 3}},
                      {Case{.name = "hard", .micro_batch = 2, .adamw = false, .max_norm = 0.5, .balance = true}}))
    expect_near_float64(c, GetParam());
}

INSTANTIATE_TEST_SUITE_P(Bounds, PipelinePrecision,
                         testing::Values(Rounding{"fp32", 1e-6, 1e-5}, Rounding{"bf16", 2e-2, 5e-2},
                                         Rounding{"fp16", 4e-3, 1e-2}),
                         [](const auto& value) { return std::string(value.param.precision); });

// bf16 gradients that are accumulated in fp32 have digits that bf16 lacks, also those of shared parameters.
TEST(PipelineRules, EveryGradientIsKeptInItsDtype) {
  Case accumulated{.name = "kept", .micro_batch = 1, .steps = 1, .twice = true, .precision = "bf16"};
  accumulated.plugin = "grad_accum_dtype = \"fp32\"";
  for (const auto& c :
       pipeline_cases({{"1f1b", 2}, {"zbv", 2}, {"1f1b", 2, 1, 2}, {"zb_h1", 2, 1, 3}}, {accumulated})) {
    const auto trace = by_pieces(c);
    for (const auto& [name, gradient] : trace.gradients.front()) {
      EXPECT_EQ(gradient.scalar_type(), at::kFloat) << c.name << name;
      EXPECT_FALSE(at::equal(gradient, gradient.to(at::kBFloat16).to(at::kFloat))) << c.name << name;
    }
  }
}

TEST(PipelineRules, AGradientThatIsNotFiniteChangesNothing) {
  for (const auto& c :
       pipeline_cases({{"1f1b", 2}, {"zbv", 2}, {"1f1b", 2, 1, 2}},
                      {Case{.name = "not_finite", .micro_batch = 2, .max_norm = 0.5, .precision = "fp32"}}))
    expect_not_finite_is_skipped(c);
}

TEST(PipelineRules, EvaluationEqualsTorchDdp) {
  for (const auto& c :
       pipeline_cases({{"1f1b", 2}, {"zbv", 2}, {"interleaved", 2, 1, 0, kTwoChunks}, {"gpipe", 4}, {"1f1b", 2, 1, 3}},
                      {Case{.name = "evaluation", .samples = 19}}))
    expect_evaluation_of_torch_ddp(c);
}

// The last batch is 2 samples on one rank and 1 on another, and each gathers weights.
TEST(PipelineRules, AnUnevenEvaluationEqualsTorchDdp) {
  for (const auto& c : pipeline_cases({{"1f1b", 2, 1, 3}, {"zbv", 2, 1, 3}}, {Case{.name = "uneven", .samples = 21}}))
    expect_evaluation_of_torch_ddp(c);
}

}  // namespace
}  // namespace trireme::tests
