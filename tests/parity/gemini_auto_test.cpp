// gemini's placement_policy = "auto": every memory limit gives the same numbers, and no rank exceeds its limit.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "core/base/error.h"
#include "core/base/memory.h"
#include "core/nn/block.h"
#include "tests/parity/layout.h"

namespace trireme::tests {
namespace {

constexpr double kSteady = 0.9;

Case make_case(const std::string& keys, bool recompute = false) {
  return {.name = "auto",
          .samples = 24,
          .micro_batch = 1,
          .steps = 3,
          .max_norm = 0.5,
          .recompute = recompute,
          .hidden = 60,
          .layers = 4,
          .plugin = "chunk_config = 4000\n" + keys,
          .plugin_name = "gemini",
          .reduce_each = true};
}

/// The elements that the last of three steps gathered, and the peak bytes of tensors in the whole run.
struct Run {
  std::uint64_t gathered = 0;
  std::int64_t peak = 0;
};
Run run(const Case& c) {
  memory::Meter meter(at::kCPU);
  meter.reset();
  Booster booster(world(), make_plugin(c), make_options(c));
  auto boosted = booster.boost(make_inputs(c));
  Run out;
  for_steps(c, boosted, [&](const data::StepBatch& batch) {
    const auto before = sent("dp", "all_gather");
    boosted.train_step(batch);
    out.gathered = sent("dp", "all_gather") - before;
  });
  auto peak = at::tensor({meter.peak()}, at::kLong);
  world().group().all_reduce(peak, comm::ReduceOp::max);
  out.peak = peak.item<std::int64_t>();
  return out;
}

class GeminiAuto : public testing::Test {
 protected:
  void SetUp() override {
    TRIREME_ONLY_ON_CPU("limits the host's memory");
    memory::count();
  }
  void TearDown() override { memory::count(); }
  /// Limits each rank's memory to `times` what `c` needs.
  static void limit(const Case& c, double times) {
    const auto peak = run(c).peak;
    memory::count(static_cast<std::int64_t>(times * static_cast<double>(peak) / kSteady));
  }
};

constexpr const char* kAuto = "placement_policy = \"auto\"\nwarmup_non_model_data_ratio = 1\n";
constexpr const char* kOffload = "offload_optim_frac = 1\noffload_param_frac = 1\n";

TEST_F(GeminiAuto, EqualsOneProcessAtEveryLimit) {
  struct Row {
    double times;
    const char* keys;
  };
  for (const bool recompute : {false, true}) {
    const auto& expected = reference(make_case("", recompute));
    for (const auto& [times, keys] : {Row{1.02, ""}, Row{1.5, "gpu_margin_mem_ratio = 0.5\nmax_prefetch = 2\n"},
                                      Row{4, "gpu_margin_mem_ratio = 1.0\n"}}) {
      SCOPED_TRACE(fmt::format("{} x what static offload needs; recompute {}; {}", times, recompute, keys));
      limit(make_case(kOffload, recompute), times);
      expect_same(make_case(std::string(kAuto) + keys, recompute), expected);
      memory::count();
    }
  }
}

// Traffic falls from that of static placement, when nothing more fits, to each weight once a step, when all fits.
TEST_F(GeminiAuto, GathersLessWithMoreMemory) {
  const auto fixed = run(make_case(kOffload));
  const auto p = static_cast<double>(nn::parameter_count(*make_model(make_case(""))));
  auto before = static_cast<double>(fixed.gathered);
  for (const double times : {1.02, 1.5, 4.0}) {
    SCOPED_TRACE(times);
    memory::count(static_cast<std::int64_t>(times * static_cast<double>(fixed.peak) / kSteady));
    const auto got = run(make_case(kAuto));
    EXPECT_LE(static_cast<double>(got.gathered), before);
    EXPECT_LE(got.peak, memory::limit());
    before = static_cast<double>(got.gathered);
    memory::count();
  }
  if (world().size() > 1) {
    EXPECT_NEAR(before, p, 0.02 * p);
  }
}

TEST_F(GeminiAuto, ReusesStatisticsOfAnEarlierRun) {
  const auto path = fmt::format("{}/memstats-{}.json", testing::TempDir(), getppid());
  const auto c = make_case(fmt::format("{}memstats = \"{}\"\ngpu_margin_mem_ratio = 1.0\n", kAuto, path));
  limit(make_case(kOffload), 4);
  if (world().rank() == 0) std::filesystem::remove(path);
  world().group().barrier();
  run(c);
  EXPECT_TRUE(std::filesystem::exists(path));
  // With statistics, already the first step has its optimizer state on the device.
  const auto held = one_step(c);
  EXPECT_EQ(held.optimizer, one_step(c).optimizer);
  auto other = c;
  other.hidden = 72;
  EXPECT_THROW(run(other), ConfigError);
  world().group().barrier();
  if (world().rank() == 0) std::ofstream(path) << "{}";
  world().group().barrier();
  EXPECT_THROW(run(c), ConfigError);
  world().group().barrier();
  if (world().rank() == 0) std::filesystem::remove(path);
}

// Rank 0 writes them, within the first step.
TEST_F(GeminiAuto, StatisticsThatCannotBeWrittenAreAnErrorOfEveryRank) {
  limit(make_case(kOffload), 4);
  EXPECT_THROW(run(make_case(fmt::format("{}memstats = \"{}/no/folder.json\"\n", kAuto, testing::TempDir()))),
               CheckpointError);
}

TEST_F(GeminiAuto, NeedsAMemoryLimit) { EXPECT_THROW(run(make_case(kAuto)), ConfigError); }

}  // namespace
}  // namespace trireme::tests
