// examples/optimize: it tunes, says so, and its losses do not depend on the number of ranks.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/command/refusal.h"

namespace trireme::tests {
namespace {

/// The losses of the epochs.
std::vector<double> losses_of(const std::string& out) {
  std::vector<double> losses;
  for (const auto& line : lines_of(out))
    if (line.find("epoch ") != std::string::npos) losses.push_back(std::stod(line.substr(line.find("loss ") + 5)));
  return losses;
}

TEST(Optimize, TunesAModuleAndABoostedModel) {
  const auto alone = run_process({OPTIMIZE});
  ASSERT_EQ(alone.code, 0) << alone.err;
  for (const auto* part : {"module   ", "after 20 steps", "candidate", "boosted  "})
    EXPECT_NE(alone.err.find(part), std::string::npos) << alone.err;
  EXPECT_EQ(alone.err.find("no float64 reference"), std::string::npos) << alone.err;
  const auto expected = losses_of(alone.err);
  ASSERT_EQ(expected.size(), 3U) << alone.err;
  const auto both = run_process({TRIREME_COMMAND, "launch", "-n", "2", OPTIMIZE});
  ASSERT_EQ(both.code, 0) << both.err;
  const auto got = losses_of(both.err);
  ASSERT_EQ(got.size(), expected.size()) << both.err;
  for (std::size_t i = 0; i < got.size(); ++i)
    EXPECT_NEAR(got[i], expected[i], 1e-3);  // which kernels are chosen varies
  const auto half = run_process({OPTIMIZE, "bf16"});
  ASSERT_EQ(half.code, 0) << half.err;
  EXPECT_NE(half.err.find("boosted  "), std::string::npos) << half.err;
}

}  // namespace
}  // namespace trireme::tests
