// The number of evaluations in a training, against a walk through its steps.
#include "core/train/evaluation_plan.h"

#include <gtest/gtest.h>

namespace trireme::train {
namespace {

TEST(EvaluationPlan, CountsTheEvaluationsOfAWalkThroughTheSteps) {
  for (std::int64_t total = 1; total <= 30; ++total)
    for (std::int64_t epoch = 1; epoch <= 8; ++epoch)
      for (std::int64_t every = 0; every <= 12; ++every) {
        std::int64_t expected = 0;
        for (std::int64_t step = 1; step <= total; ++step)
          expected += step == total || step % epoch == 0 || (every > 0 && step % every == 0) ? 1 : 0;
        EXPECT_EQ(count_evaluations(total, epoch, every > 0 ? std::optional(every) : std::nullopt), expected)
            << total << " steps, " << epoch << " an epoch, every " << every;
      }
  constexpr auto kMost = static_cast<std::int64_t>(kMostSteps);
  EXPECT_EQ(count_evaluations(kMost, kMost - 1, kMost), 2);
}

}  // namespace
}  // namespace trireme::train
