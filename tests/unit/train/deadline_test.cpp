// When a run that has lasted long enough stops.
#include "core/train/deadline.h"

#include <gtest/gtest.h>

namespace trireme::train {
namespace {

TEST(Deadline, StopsSoManyStepsAfterTheFirstYes) {
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

// A rank whose copy of an answer comes sooner must not stop sooner: answers that are known early wait for their turn.
TEST(Deadline, NoAnswerCountsBeforeItsTurn) {
  const auto world = comm::World::start({}, {.device = "cpu"});
  Deadline deadline(*world, 3);
  EXPECT_FALSE(deadline.passed(true));  // on a CPU it is known at once
  EXPECT_FALSE(deadline.passed(true));
  EXPECT_FALSE(deadline.passed(true));
  EXPECT_TRUE(deadline.passed(true));
}

}  // namespace
}  // namespace trireme::train
