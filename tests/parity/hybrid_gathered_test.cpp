// Sharded weights (zero_stage = 3) beside tensor parallelism and pipelines: what a rank holds and sends.
#include <gtest/gtest.h>

#include <algorithm>
#include <ostream>

#include "core/base/memory.h"
#include "core/nn/block.h"
#include "core/train/evaluate.h"
#include "tests/parity/layout.h"

namespace trireme::tests {
namespace {

struct GatheredRow {
  const char* name;
  std::string keys = "";
  std::int64_t tp = 1, pp = 1, micro_batch = 8, ahead = 0;
  std::int64_t gathers = 2;  ///< of all weights, per microbatch
};

Case case_of(const GatheredRow& row) {
  return {.name = row.name,
          .samples = 32,
          .micro_batch = row.micro_batch,
          .hidden = 60,
          .layers = 8,
          .plugin = fmt::format("zero_stage = 3\ntp_size = {}\npp_size = {}\n{}", row.tp, row.pp, row.keys),
          .precision = "fp32",
          .plugin_name = "hybrid_parallel",
          .tp = row.tp,
          .pp = row.pp};
}

void PrintTo(const GatheredRow& row, std::ostream* out) { *out << row.name; }

/// Elements of this rank's stages before they are sharded over the data-parallel ranks, and of their largest block.
struct StageElements {
  double all = 0, block = 0;
};

StageElements stage_elements(BoostedModel& model) {
  StageElements out;
  for (const auto& parameter : nn::declarations(model.module()))
    out.all += static_cast<double>(parameter.placement.local_numel());
  for (const auto& block : model.module().blocks()) {
    double elements = 0;
    for (const auto& value : block->parameters()) elements += value.is_meta() ? 0 : static_cast<double>(value.numel());
    out.block = std::max(out.block, elements);
  }
  return out;
}

/// Payload elements per microbatch that a step sent over the data-parallel ranks.
struct Sent {
  double gathered, reduced;
};

Sent step(Boosted& run, bool narrow = false) {
  const auto elements = [](const char* op) { return static_cast<double>(sent("dp", op)); };
  const auto gathered = elements("all_gather"), reduced = elements("reduce_scatter");
  auto batch = *run.loader->next();
  if (narrow)
    for (auto& micro : batch.micro) micro.inputs.set("pixel_values", micro.inputs["pixel_values"].narrow(3, 0, 11));
  run.train_step(batch);
  const auto k = static_cast<double>(batch.micro.size());
  return {(elements("all_gather") - gathered) / k, (elements("reduce_scatter") - reduced) / k};
}

class HybridGathered : public testing::TestWithParam<GatheredRow> {};

const std::string kChunks = "zero_bucket_size_in_m = 0.1\n";

INSTANTIATE_TEST_SUITE_P(
    Rows, HybridGathered,
    testing::Values(GatheredRow{"plain"}, GatheredRow{"ahead", "overlap_allgather = true", 1, 1, 8, 1},
                    GatheredRow{"accumulate", "", 1, 1, 1}, GatheredRow{"offload", "cpu_offload = true", 1, 1, 2},
                    GatheredRow{"tp2", kChunks, 2, 1, 2}, GatheredRow{"pp2", "", 1, 2, 1},
                    GatheredRow{"pp2_ahead", "overlap_allgather = true", 1, 2, 1, 1},
                    GatheredRow{"gpipe", "pp_style = \"gpipe\"", 1, 2, 1},
                    GatheredRow{"interleaved", "pp_style = \"interleaved\"\nnum_model_chunks = 2", 1, 2, 1},
                    GatheredRow{"zb_h1", "pp_style = \"zb_h1\"", 1, 2, 1, 0, 3},
                    GatheredRow{"zbv", "pp_style = \"zbv\"", 1, 2, 1, 0, 3}, GatheredRow{"tp2_pp2", kChunks, 2, 2, 1}),
    [](const auto& value) { return std::string(value.param.name); });

// With N ranks and P elements in a rank's stages, the rank holds P/N of the weights, the gradients and each of the two
// moments, one gathered block, and the blocks that are prefetched.
TEST_P(HybridGathered, MemoryAndTrafficMatchTheFormulas) {
  const auto& row = GetParam();
  if (world().size() % (row.tp * row.pp) != 0) GTEST_SKIP() << "for another number of ranks";
  const auto c = case_of(row);
  Booster booster(world(), make_plugin(c), make_options(c));
  auto run = booster.boost(make_inputs(c));
  const auto n = static_cast<double>(booster.mesh().group("dp").size());
  const auto [all, block] = stage_elements(*run.model);
  run.loader->start_epoch(0);
  step(run);  // learns the order of the blocks
  const auto sent = step(run);

  const auto near = [](std::int64_t bytes, double formula) {  // up to the padding of chunks
    EXPECT_NEAR(static_cast<double>(bytes), formula, 0.03 * formula);
  };
  near(run.model->report().parameter_bytes, 4 * all / n);
  near(run.optimizer->report().gradient_bytes, 4 * all / n);
  const bool offload = row.keys.find("offload") != std::string::npos;  // of masters too
  near(run.optimizer->report().state_bytes, (offload ? 12 : 8) * all / n);
  EXPECT_EQ(run.optimizer->report().host_state_bytes, offload ? run.optimizer->report().state_bytes : 0);
  const auto peak = run.model->report().peak_gathered_bytes;
  near(peak, 4 * block * static_cast<double>(1 + row.ahead));
  EXPECT_LT(static_cast<double>(peak), 4 * all);  // the whole stage is never gathered at once

  if (n > 1) {
    EXPECT_NEAR(sent.reduced, all, 0.03 * all);
    // A block that the next pass needs first stays gathered, one at each turn of a microbatch. The first stage
    // computes no gradient of its input.
    const auto times = static_cast<double>(row.gathers), least = booster.mesh().coordinate("pp") == 0 ? 2 : times;
    EXPECT_LE(sent.gathered, 1.03 * times * all);
    EXPECT_GE(sent.gathered, least * all - times * block);
  }
  // The recorded order of the blocks survives an evaluation in between.
  for (int i = 0; i < 2; ++i) {
    train::evaluate(run, *run.evaluation_loader(make_data(c), 4));
    const auto again = step(run);
    EXPECT_EQ(again.gathered, sent.gathered);
    EXPECT_EQ(again.reduced, sent.reduced);
  }
}

// Ranks of different pipelines may meet inputs of a new shape at different steps, so their shape inference must not
// gather weights.
TEST(HybridGatheredRules, ANewShapeGathersNothing) {
  if (world().size() != 4) GTEST_SKIP() << "for 4 ranks";
  auto c = case_of({"shapes", "", 1, 2, 1});
  c.vocabulary = Case::Vocabulary::untied;  // narrow images give it equally many tokens
  Booster booster(world(), make_plugin(c), make_options(c));
  auto run = booster.boost(make_inputs(c));
  run.loader->start_epoch(0);
  step(run);
  const auto usual = step(run), with_new_shapes = step(run, /*narrow=*/true);
  EXPECT_EQ(with_new_shapes.gathered, usual.gathered);
  auto fresh = booster.boost(make_inputs(c));
  fresh.loader->start_epoch(0);
  step(fresh);
  EXPECT_EQ(step(fresh, booster.mesh().coordinate("dp") == 1).gathered, usual.gathered);
}

/// The peak bytes of a rank's tensors in the second step.
double peak_of_a_step(const Case& c) {
  memory::count();
  memory::Meter meter(at::kCPU);
  Booster booster(world(), make_plugin(c), make_options(c));
  auto run = booster.boost(make_inputs(c));
  run.loader->start_epoch(0);
  step(run);
  meter.reset();
  step(run);
  return static_cast<double>(meter.peak());
}

// In a pipeline too, gradients are reduced block by block: after the whole stage, all of them would be held.
TEST(HybridGatheredRules, GradientsAreReducedBlockByBlock) {
  TRIREME_ONLY_ON_CPU("counts the host's memory");
  if (world().size() != 4) GTEST_SKIP() << "for 4 ranks";
  for (const auto* keys : {"", "pp_style = \"gpipe\"", "pp_style = \"zb_h1\""}) {
    SCOPED_TRACE(keys);
    auto c = case_of({"early", keys, 1, 2, 1});
    c.layers = 16;
    c.patch = 12;  // two tokens keep the activations small
    const auto early = peak_of_a_step(c);
    c.plugin += "\noverlap_communication = false";
    const auto late = peak_of_a_step(c);
    const double block = 4 * (4 * 60 * 60 + 2 * 120 * 60);       // bytes, without biases and norms
    EXPECT_GT(late - early, 3 * block) << early << " " << late;  // of 8: two are being reduced, one is being filled
  }
}

}  // namespace
}  // namespace trireme::tests
