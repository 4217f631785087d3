// The pipeline executor by itself: gradients, memory, and messages of several tensors. pipeline_time_test.cpp tests its
// times.
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <utility>

#include "core/base/memory.h"
#include "core/pipeline/schedules.h"
#include "tests/ranks/paced_stages.h"
#include "tests/ranks/world.h"
#include "tests/unit/pipeline/peak_live.h"

namespace trireme::tests {
namespace {

class PipelineExecutor : public testing::TestWithParam<Setting> {
 protected:
  static comm::Mesh& mesh() {
    static comm::Mesh whole(world(), {{"pp", world().size()}});
    return whole;
  }
  static Schedule schedule() {
    return pipeline::make_schedule({GetParam().name, GetParam().chunks}, world().size(), GetParam().microbatches);
  }
};

TEST_P(PipelineExecutor, ComputesTheGradientsOfTheProduct) {
  const auto plan = schedule();
  for (const std::int64_t samples : {1, 3}) {
    Multiply chunks(plan, world().rank(), {});
    pipeline::Executor executor({GetParam().name, GetParam().chunks}, pipeline::Links(mesh(), "pp"), chunks);
    const auto micro = batches(plan.microbatches, samples);
    double sum = 0, product = 1;
    for (const auto& batch : micro) sum += batch.inputs.front().sum().item<double>();
    for (int stage = 0; stage < plan.stages(); ++stage) product *= stage + 2;
    for (int step = 1; step <= 2; ++step) {
      executor.train(micro);
      EXPECT_EQ(chunks.ended, step * plan.chunks);
      for (const auto& weight : chunks.weights)
        EXPECT_DOUBLE_EQ(weight.grad().item<double>(), step * sum * product / weight.item<double>());
      EXPECT_EQ(executor.peak_live(), pipeline::peak_live(plan)[static_cast<std::size_t>(world().rank())]);
    }
    const at::NoGradGuard no_grad;
    const auto made = executor.evaluate(micro);
    if (plan.location_of(plan.stages() - 1).rank != world().rank()) {
      EXPECT_TRUE(made.empty());
      continue;
    }
    ASSERT_EQ(made.size(), micro.size());
    for (std::size_t m = 0; m < made.size(); ++m) EXPECT_TRUE(made[m][0].equal(micro[m].inputs.front() * product));
  }
}

INSTANTIATE_TEST_SUITE_P(Schedules, PipelineExecutor,
                         testing::Values(Setting{"gpipe", 0, 1}, Setting{"gpipe", 0, 5}, Setting{"1f1b", 0, 1},
                                         Setting{"1f1b", 0, 2}, Setting{"1f1b", 0, 7}, Setting{"interleaved", 2, 1},
                                         Setting{"interleaved", 2, 4}, Setting{"interleaved", 3, 5},
                                         Setting{"zb_h1", 0, 1}, Setting{"zb_h1", 0, 7}, Setting{"zbv", 0, 1},
                                         Setting{"zbv", 0, 8}),
                         [](const auto& value) {
                           return fmt::format("{}_{}_{}", value.param.name, value.param.chunks,
                                              value.param.microbatches);
                         });

// A rank's memory depends on the schedule, not on the number of microbatches in a step.
TEST(PipelineExecutorMemory, DoesNotGrowWithTheMicrobatches) {
  TRIREME_ONLY_ON_CPU("counts the host's memory");
  if (world().size() < 2) GTEST_SKIP() << "needs more ranks";
  comm::Mesh mesh(world(), {{"pp", world().size()}});
  memory::count();
  constexpr std::int64_t kSamples = 20'000;  // a tensor of them takes 160 kB
  for (const auto& run :
       {Setting{"1f1b", 0, 0}, Setting{"interleaved", 2, 0}, Setting{"zb_h1", 0, 0}, Setting{"zbv", 0, 0}}) {
    const auto peak = [&](int microbatches) {
      const auto plan = pipeline::make_schedule({run.name, run.chunks}, world().size(), microbatches);
      Multiply chunks(plan, world().rank(), {});
      pipeline::Executor executor({run.name, run.chunks}, pipeline::Links(mesh, "pp"), chunks);
      const auto micro = batches(microbatches, kSamples);
      executor.train(micro);  // the ranks agree on shapes
      memory::Meter meter(at::kCPU);
      const auto before = memory::held();
      meter.reset();
      executor.train(micro);
      return std::pair{meter.peak() - before, executor.peak_live()};
    };
    const int few = 4 * world().size();
    const auto [bytes, live] = peak(few);
    const auto [bytes_of_more, live_of_more] = peak(3 * few);
    ASSERT_EQ(live, live_of_more) << run.name;
    // A few tensors may linger after they were sent or received, longer on a busy machine. Keeping one for every
    // additional microbatch would take 2 * few of them.
    EXPECT_LE(bytes_of_more - bytes, few * kSamples * 8) << run.name << ": " << bytes << " and " << bytes_of_more;
  }
}

}  // namespace
}  // namespace trireme::tests
