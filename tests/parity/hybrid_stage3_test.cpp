// The keys of stage 3 in hybrid_parallel, which are gemini's: every case, beside tensor parallelism and in a pipeline,
// against one process in float64. Also check_reduction, which is for stage 0.
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "core/base/error.h"
#include "core/base/memory.h"
#include "core/nn/block.h"
#include "tests/parity/layout.h"

namespace trireme::tests {
namespace {

struct Ranks {
  std::int64_t tp, pp;
};

std::vector<Case> stage3(const std::vector<Layout>& layouts, const std::vector<Case>& cases) {
  std::vector<Case> out;
  for (const auto& [tp, pp] : {Ranks{1, 1}, {2, 1}, {1, 2}, {2, 2}})
    for (const auto& layout : layouts)
      for (auto c : cross("hybrid_parallel", "",
                          {{fmt::format("tp{}_pp{}_{}", tp, pp, layout.name),
                            fmt::format("tp_size = {}\npp_size = {}\nzero_stage = 3\n{}", tp, pp, layout.keys)}},
                          cases)) {
        c.tp = tp;
        c.pp = pp;
        out.push_back(std::move(c));
      }
  return tried(std::move(out));
}

class Stage3 : public testing::TestWithParam<Case> {};

TEST_P(Stage3, EqualsOneProcess) { expect_same_as_one_process(GetParam()); }

const auto kStage3Name = [](const auto& value) { return value.param.name; };

INSTANTIATE_TEST_SUITE_P(
    Keys, Stage3,
    testing::ValuesIn(
        stage3({{"prefetch3", "chunk_config = 1000\nmax_prefetch = 3"},
                {"half_stays", "chunk_config = 1000\nshard_param_frac = 0.5\nmax_prefetch = 1"},
                {"all_stay", "chunk_config = 1000\nstrict_ddp_mode = true"},
                {"offload_some", "chunk_config = 1000\noffload_optim_frac = 0.6\noffload_param_frac = 0.3"},
                {"searched", "min_chunk_size_m = 0.001\nsearch_range_m = 0.0005\nhidden_dim = 64"},
                {"hold", "chunk_config = 1000\nenable_gradient_accumulation = true"}},
               {Case{.name = "accumulate_clip", .micro_batch = 1, .max_norm = 0.5},
                Case{.name = "twice_recompute", .micro_batch = 2, .dropout = 0.2, .recompute = true, .twice = true}})),
    kStage3Name);

/// The bytes that a rank holds after a step, and what it gathered.
Held held_by(const Case& c) { return one_step(c); }

// With replicas of the partitioned state every stage gives the same numbers, and each rank holds twice the state.
TEST(HybridReplicas, EqualOneProcessAndHoldMore) {
  if (world().size() != 4) GTEST_SKIP() << "for 4 ranks";
  for (const int stage : {1, 2, 3}) {
    const auto with = [stage](const std::string& keys) {
      return cross("hybrid_parallel", "", {{"replicas", fmt::format("zero_stage = {}\n{}", stage, keys)}},
                   {Case{.name = "clip", .micro_batch = kUneven, .max_norm = 0.5}})
          .front();
    };
    SCOPED_TRACE(fmt::format("stage {}", stage));
    expect_same_as_one_process(with("extra_dp_size = 2"));
    const auto one = held_by(with("")), two = held_by(with("extra_dp_size = 2"));
    EXPECT_NEAR(static_cast<double>(two.optimizer) / static_cast<double>(one.optimizer), 2, 0.1);
  }
  auto refused = cross("hybrid_parallel", "", {{"pp2_tp1", "zero_stage = 1\npp_size = 2\nextra_dp_size = 2"}},
                       {Case{.name = "refused", .micro_batch = 1}})
                     .front();
  EXPECT_THROW(make_plugin(refused)->check({.train = {.global_batch = 8}, .world_size = 4}), ConfigError);
}

// The limits range from everything in host memory to everything on the device.
TEST(Stage3Auto, EqualsOneProcess) {
  TRIREME_ONLY_ON_CPU("limits the host's memory");
  for (const double mib : {1.0, 100.0})
    for (auto c : stage3({{"auto", "chunk_config = 1000\nplacement_policy = \"auto\"\nmax_prefetch = 1"}},
                         {Case{.name = "clip", .micro_batch = kUneven, .max_norm = 0.5}})) {
      if (c.pp > 1) continue;
      SCOPED_TRACE(fmt::format("{} MiB: {}", mib, c.name));
      const auto& expected = reference(c);
      memory::count(static_cast<std::int64_t>(mib * 1024 * 1024));
      expect_same(c, expected);
      memory::count();
    }
}

// Measurements are valid for one microbatch size and one split of the tokens.
TEST(Stage3Auto, MeasurementsOfAnotherRunAreRefused) {
  TRIREME_ONLY_ON_CPU("limits the host's memory");
  if (world().size() != 2) GTEST_SKIP() << "for 2 ranks";
  const auto file = shared_path("memstats.json");
  const auto with = [&](const std::string& keys) {
    return cross("hybrid_parallel", "",
                 {{"measured", fmt::format("zero_stage = 3\nchunk_config = 1000\nplacement_policy = \"auto\"\n"
                                           "memstats = \"{}\"\n{}",
                                           file, keys)}},
                 {Case{.name = "memstats"}})
        .front();
  };
  memory::count(std::int64_t{100} << 20);
  one_step(with("microbatch_size = 2"));
  one_step(with("microbatch_size = 2"));
  EXPECT_THROW(one_step(with("microbatch_size = 1")), ConfigError);
  EXPECT_THROW(one_step(with("microbatch_size = 2\nsp_size = 2\nsequence_parallelism_mode = \"all_to_all\"")),
               ConfigError);
  memory::count();
  world().group().barrier();
  std::filesystem::remove(file);
}

// A key without effect would give the same numbers too, so its effect is checked in memory and traffic.
TEST(Stage3Keys, ChangeWhatARankHolds) {
  if (world().size() != 2) GTEST_SKIP() << "for 2 ranks";
  const auto with = [](const std::string& keys) {
    return held_by({.name = "held",
                    .micro_batch = kUneven,
                    .hidden = 60,
                    .layers = 4,
                    .plugin = "zero_stage = 3\n" + keys,
                    .plugin_name = "hybrid_parallel"});
  };
  const auto plain = with("chunk_config = 1000");
  EXPECT_GT(with("chunk_config = 1000\nmax_prefetch = 2").peak_gathered, plain.peak_gathered);
  EXPECT_EQ(with("chunk_config = 1000\nstrict_ddp_mode = true").peak_gathered, 0);
  const auto half = with("chunk_config = 1000\nshard_param_frac = 0.5");
  EXPECT_LT(half.gathered, plain.gathered);
  EXPECT_GT(half.parameters, plain.parameters);
  EXPECT_LT(with("chunk_config = 1000\nenable_gradient_accumulation = true").reduced, plain.reduced);
}

// After the reduction, every data-parallel rank of stage 0 must have the same gradients.
TEST(HybridReduction, DifferentGradientsAreNamed) {
  if (world().size() % 2 != 0) GTEST_SKIP() << "for an even number of ranks";
  for (const auto& [tp, pp] : {Ranks{1, 1}, {2, 1}, {1, 2}}) {
    const Case c{.name = "check",
                 .micro_batch = kUneven,
                 .steps = 2,
                 .max_norm = 0.5,
                 .plugin = fmt::format("check_reduction = true\ntp_size = {}\npp_size = {}", tp, pp),
                 .plugin_name = "hybrid_parallel",
                 .tp = tp,
                 .pp = pp};
    SCOPED_TRACE(c.plugin);
    expect_same_as_one_process(c);
    Booster booster(world(), make_plugin(c), make_options(c));
    auto run = booster.boost(make_inputs(c));
    const auto& dp = booster.mesh().group("dp");
    if (dp.size() == 1) continue;
    run.loader->start_epoch(0);
    run.forward_backward(*run.loader->next());
    const auto gradients = run.model->gradients();
    if (dp.rank() == 1) gradients.front().value.add_(1e-6);
    try {
      run.optimizer->step(0.1);
      ADD_FAILURE() << "the ranks stepped with different gradients";
    } catch (const CommError& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find("plugin.hybrid_parallel.check_reduction"), std::string::npos) << text;
      EXPECT_NE(text.find(gradients.front().placement.name), std::string::npos) << text;
    }
  }
}

}  // namespace
}  // namespace trireme::tests
