// What ranks tell each other with the loss of a step.
#include "core/booster/vote.h"

#include <gtest/gtest.h>

#include <vector>

namespace trireme {
namespace {

// Ranks that have read up to `lag` steps less than others know of it after the same step, and what was voted before a
// beginning does not count after it.
TEST(LaggedVote, IsKnownAfterTheSameStepByAllRanks) {
  for (const std::int64_t lag : {0, 4})
    for (std::int64_t behind = 0; behind <= lag; ++behind) {
      const auto first = 10 + lag;
      LaggedVote vote;
      std::vector<std::int64_t> known;
      std::int64_t read = 0;
      for (std::int64_t step = 0; step < 40; ++step) {
        for (; read <= step - behind; ++read) vote.read((read >= 10 && read <= first) || read >= 30);
        if (!vote.launched(lag)) continue;
        known.push_back(step);
        if (known.size() == 1) vote.begin();
      }
      std::vector<std::int64_t> expected{first};
      for (auto step = 30 + lag; step < 40; ++step) expected.push_back(step);
      EXPECT_EQ(known, expected) << "lag " << lag << ", behind " << behind;
    }
}

}  // namespace
}  // namespace trireme
