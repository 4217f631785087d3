// When a run with a time limit stops.
#include "core/train/deadline.h"

#include <gtest/gtest.h>

namespace trireme::train {
namespace {

TEST(Deadline, StopsAFixedLagAfterTheFirstYes) {
  const auto world = comm::World::start({}, {.device = "cpu"});
  for (const std::size_t lag : {0, 1, 4}) {
    Deadline deadline(*world, lag);
    const std::size_t late = 7;
    for (std::size_t step = 0; step < 20; ++step)
      EXPECT_EQ(deadline.passed(step == late || step > late + 2), step >= late + lag) << lag << " " << step;
  }
  EXPECT_EQ(Deadline::lag_on(at::kCPU), 0U);
  EXPECT_GT(Deadline::lag_on(at::kCUDA), 0U);
}

// All ranks must stop at the same step, so a rank that knows an answer early uses it only after the lag.
TEST(Deadline, NoAnswerCountsBeforeTheLag) {
  const auto world = comm::World::start({}, {.device = "cpu"});
  Deadline deadline(*world, 3);
  EXPECT_FALSE(deadline.passed(true));  // on a CPU it is known at once
  EXPECT_FALSE(deadline.passed(true));
  EXPECT_FALSE(deadline.passed(true));
  EXPECT_TRUE(deadline.passed(true));
}

}  // namespace
}  // namespace trireme::train
