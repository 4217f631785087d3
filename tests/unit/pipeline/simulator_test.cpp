// The costs of schedules equal the closed forms of schedules.h exactly.
#include "core/pipeline/simulator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "core/base/error.h"
#include "tests/unit/pipeline/cases.h"
#include "tests/unit/pipeline/peak_live.h"

namespace trireme::pipeline {
namespace {

/// Seconds of one microbatch on a rank, all its chunks together.
struct Whole {
  double f, b, w;
  [[nodiscard]] double sum() const { return f + b + w; }
};

// Powers of two and their sums: exact in halves and quarters of a rank; thirds are within rounding.
const std::vector<Whole> kWholes{{4, 4, 4}, {4, 8, 4}, {4, 4, 8}, {8, 4, 4}, {12, 8, 4}, {4, 12, 12}, {4, 6, 2}};

Timeline simulate(const Schedule& schedule, const Whole& cost) {
  const double chunks = schedule.chunks;
  return simulate(
      schedule,
      Costs{.forward = {cost.f / chunks}, .backward_input = {cost.b / chunks}, .backward_weight = {cost.w / chunks}});
}

/// The step's time beyond its m (F + B + W), by the table of schedules.h; negative where the table has no formula.
double bubble(const Case& c, const Whole& cost) {
  const double p = c.ranks, m = c.microbatches;
  if (c.name == "gpipe" || c.name == "1f1b") return (p - 1) * cost.sum();
  if (c.name == "interleaved") {
    if (m >= p) return (p - 1) * cost.sum() / c.chunks;
    return (p - m + (m - 1) / c.chunks) * cost.sum();  // the first goes through all stages, the others follow
  }
  if (c.name == "zb_h1")
    return (p - 1) * (cost.f + cost.b) - std::min(m - 1, p - 1) * std::min({cost.f, cost.b, cost.w});
  return cost.f == cost.b && cost.b == cost.w && 2 * m >= 3 * p ? (p - 1) * cost.f / 2 : -1;
}

TEST(Simulator, StepTimesMatchTheFormulas) {
  for (const auto& c : all_cases())
    for (const auto& cost : kWholes) {
      const double expected = bubble(c, cost), work = c.microbatches * cost.sum();
      if (expected < 0) continue;
      const auto timeline = simulate(c.schedule(), cost);
      ASSERT_NEAR(timeline.step, work + expected, 1e-9 * timeline.step) << c.text();
      ASSERT_NEAR(timeline.busy, work * c.ranks, 1e-9 * timeline.busy) << c.text();
      ASSERT_NEAR(timeline.idle() / timeline.busy, expected / work, 1e-9) << c.text();
      ASSERT_NEAR(timeline.idle_of_step(), expected / (work + expected), 1e-9) << c.text();
    }
}

TEST(Simulator, BubblesOfTheLiterature) {
  const auto ones = Whole{1, 1, 1};
  for (int p = 1; p <= 8; ++p)
    for (int m = p; m <= 32; m += p) {
      const double rest = p - 1;
      for (const auto* name : {"gpipe", "1f1b"}) {
        const auto timeline = simulate(make_schedule({name}, p, m), ones);
        ASSERT_NEAR(timeline.idle_of_step(), rest / (m + rest), 1e-12);
        ASSERT_NEAR(timeline.idle() / timeline.busy, rest / m, 1e-12);
      }
      for (const int v : {1, 2, 3, 4})
        ASSERT_NEAR(simulate(interleaved(p, m, v), ones).idle_of_step(), rest / (v * m + rest), 1e-12);
    }
}

TEST(Simulator, NoScheduleIsSlowerThanTheOneItImproves) {
  for (int p = 1; p <= 8; ++p)
    for (int m = 1; m <= 32; ++m)
      for (const auto& cost : kWholes) {
        const double plain = simulate(one_f_one_b(p, m), cost).step + 1e-9;
        EXPECT_LE(simulate(zb_h1(p, m), cost).step, plain);
        for (const int v : {2, 3, 4}) EXPECT_LE(simulate(interleaved(p, m, v), cost).step, plain);
        if (cost.f == cost.b && cost.b == cost.w) {
          EXPECT_LE(simulate(zbv(p, m), cost).step, plain);
        }
      }
}

TEST(Simulator, ZbvMissesItsBoundOnlyWithFewMicrobatches) {
  for (int p = 1; p <= 24; ++p)
    for (int m = p; m <= 4 * p; ++m) {
      // In units of half a rank's forward. No rank can do better than 6 m + (p-1): the last one starts p-1 late.
      const auto more = static_cast<int>(simulate(zbv(p, m), Whole{2, 2, 2}).step) - 6 * m - (p - 1);
      if (m == p || 2 * m >= 3 * p)
        EXPECT_EQ(more, 0) << p << " ranks, " << m;
      else
        EXPECT_LE(more, 3 * p - 2 * m) << p << " ranks, " << m;
    }
}

TEST(Simulator, PeaksOfLiveMicrobatches) {
  for (const auto& c : all_cases()) {
    const auto schedule = c.schedule();
    const auto peaks = peak_live(schedule), until_input = peak_live(schedule, LiveUntil::input_gradient);
    const int p = c.ranks, m = c.microbatches, group = (m + std::max(1, m / p) - 1) / std::max(1, m / p);
    for (int r = 0; r < p; ++r) {
      const auto rank = static_cast<std::size_t>(r);
      const int as_1f1b = std::min(m, p - r);
      int expected = as_1f1b;
      if (c.name == "gpipe") expected = m;
      if (c.name == "interleaved") expected = std::min(m * c.chunks, 2 * (p - r - 1) + (c.chunks - 1) * group + 1);
      if (c.name == "zb_h1") expected = std::min(m, p);
      if (c.name == "zbv") expected = 2 * std::min(m, p);  // chunks of half a rank
      ASSERT_EQ(peaks[rank], expected) << c.text() << " rank " << r;
      if (c.name == "zbv") continue;
      ASSERT_EQ(until_input[rank], c.name == "zb_h1" ? as_1f1b : expected) << c.text() << " rank " << r;
    }
  }
}

TEST(Simulator, UnevenStagesAndMessages) {
  // rank 0: F0 F1 B0 B1, rank 1: F0 B0 F1 B1; the second stage costs twice the first, a message a quarter.
  const auto timeline = simulate(one_f_one_b(2, 2), Costs{{1, 2}, {1, 2}, {1, 2}, 0.25});
  const std::vector<std::vector<std::pair<double, double>>> expected{
      {{0, 1}, {1, 2}, {7.5, 9.5}, {13.5, 15.5}}, {{1.25, 3.25}, {3.25, 7.25}, {7.25, 9.25}, {9.25, 13.25}}};
  for (std::size_t rank = 0; rank < 2; ++rank)
    for (std::size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(timeline.spans[rank][i].start, expected[rank][i].first) << rank << ", " << i;
      EXPECT_EQ(timeline.spans[rank][i].end, expected[rank][i].second) << rank << ", " << i;
    }
  EXPECT_EQ(timeline.step, 15.5);
  EXPECT_EQ(timeline.busy, 18);
  EXPECT_EQ(timeline.idle(), 13);
  // Between the two stages of the last rank of a V there is no message: 3 of 4 borders are crossed, there and back.
  EXPECT_EQ(simulate(zbv(2, 1), Costs{.message = 10}).step, 8 + 1 + 2 * 2 * 10);
  EXPECT_EQ(simulate(interleaved(1, 4, 3), Costs{.message = 10}).step, 4 * 3 * 3);
}

TEST(Simulator, MessagesOverlapComputationOnceThePipelineIsFull) {
  const auto added = [](const std::string& name, int p, int v) {  // the seconds that p more microbatches add
    const Costs costs{{1.0 / std::max(1, v)}, {1.0 / std::max(1, v)}, {1.0 / std::max(1, v)}, 0.05};
    return simulate(make_schedule({name, v}, p, 6 * p), costs).step -
           simulate(make_schedule({name, v}, p, 5 * p), costs).step;
  };
  for (int p = 2; p <= 8; ++p) {
    EXPECT_NEAR(added("gpipe", p, 0), 3 * p, 1e-9);
    EXPECT_NEAR(added("zb_h1", p, 0), 3 * p, 1e-9);
    for (const int v : {2, 3, 4}) EXPECT_NEAR(added("interleaved", p, v), 3 * p, 1e-9) << p << " ranks, " << v;
    EXPECT_GT(added("1f1b", p, 0), 3 * p + 1e-3) << "else schedules.h is wrong";
  }
}

TEST(Simulator, RefusesDeadlocksAndMissingCosts) {
  auto stuck = one_f_one_b(2, 2);  // each rank waits for the other
  std::swap(stuck.actions[0][1], stuck.actions[0][2]);
  std::swap(stuck.actions[1][1], stuck.actions[1][2]);
  EXPECT_THROW(simulate(stuck, Costs{}), LogicError);
  EXPECT_THROW(simulate(one_f_one_b(3, 1), Costs{.forward = {1, 2}}), LogicError);
}

TEST(Simulator, ThousandsOfRanks) {
  const auto timeline = simulate(one_f_one_b(1024, 4096), Costs{});
  EXPECT_EQ(timeline.step, 3 * (4096 + 1024 - 1));
}

}  // namespace
}  // namespace trireme::pipeline
