// Which steps are bad, and what is decided about them.
#include "core/train/bad_numbers.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

#include "core/base/error.h"
#include "core/setup/run_config.h"
#include "core/train/callback.h"

namespace trireme::train {
namespace {

/// A judge with options of its own, on a device whose numbers are read at once.
struct Judge {
  TrainSection options;
  NumbersState state;
  BadNumbers numbers{options, state};
  std::int64_t steps = 0;
  std::string line;  ///< what the last step said

  explicit Judge(const std::string& policy = "stop", std::int64_t most = 10) {
    options.on_nonfinite = policy;
    options.max_nonfinite = most;
  }
  std::optional<BadStep> step(double loss, double norm, bool skipped = false, bool has_loss_scale = false) {
    StepLog log{};
    log.at.global_step = ++steps;
    log.loss = loss;
    log.grad_norm = norm;
    log.skipped = skipped;
    numbers.launched();
    line = numbers.see(log, has_loss_scale);
    return numbers.due(0);
  }
};

TEST(BadNumbers, WithoutALossScaleTheFirstOneEndsTheRun) {
  for (const auto& [loss, norm] : {std::pair{NAN, 1.0}, {-NAN, 1.0}, {1.0, NAN}, {INFINITY, 1.0}, {1.0, INFINITY}}) {
    Judge judge;
    EXPECT_FALSE(judge.step(0.5, 2));
    const auto bad = judge.step(loss, norm, !std::isfinite(norm));
    ASSERT_TRUE(bad) << loss << " " << norm;
    EXPECT_EQ(bad->act, BadStep::Act::stop);
    EXPECT_EQ(bad->step, 2);
    EXPECT_EQ(bad->what.find("step 2: the loss is "), 0U) << bad->what;
    EXPECT_EQ(bad->what.find("-nan"), std::string::npos) << bad->what;
    EXPECT_NE(bad->what.find(std::isfinite(norm) ? "was applied" : "was not applied"), std::string::npos) << bad->what;
  }
}

TEST(BadNumbers, WithALossScaleSomeStepsMayBeSkipped) {
  Judge judge;
  for (int row = 0; row < 3; ++row) {
    for (int i = 1; i < BadNumbers::kSkips; ++i) EXPECT_FALSE(judge.step(0.5, INFINITY, true, true));
    EXPECT_FALSE(judge.step(0.5, 1, false, true));
  }
  for (int i = 1; i < BadNumbers::kSkips; ++i) EXPECT_FALSE(judge.step(0.5, NAN, true, true));
  const auto bad = judge.step(0.5, NAN, true, true);
  ASSERT_TRUE(bad);
  EXPECT_EQ(bad->steps.size(), static_cast<std::size_t>(BadNumbers::kSkips));
  EXPECT_NE(bad->what.find("49 before it were bad too"), std::string::npos) << bad->what;
}

TEST(BadNumbers, RepeatedLossOverflowsEndTheRun) {
  Judge judge;
  const auto almost_too_many = [&] {
    for (int i = 1; i < BadNumbers::kBadLosses; ++i) EXPECT_FALSE(judge.step(NAN, NAN, true, true));
  };
  almost_too_many();
  EXPECT_FALSE(judge.step(0.5, 1.0, false, true));  // ends the series
  almost_too_many();
  EXPECT_TRUE(judge.step(NAN, NAN, true, true));
}

TEST(BadNumbers, SkippedStepsEndTheRunWhenTheyAreTooManyInARow) {
  Judge judge("skip", 2);
  EXPECT_FALSE(judge.step(NAN, NAN, true));
  EXPECT_EQ(judge.line.find("skipped   step 1: the loss is nan"), 0U) << judge.line;
  EXPECT_FALSE(judge.step(NAN, NAN, true));
  EXPECT_EQ(judge.line, "");  // said once
  EXPECT_FALSE(judge.step(0.5, 1));
  EXPECT_FALSE(judge.step(NAN, NAN, true));
  EXPECT_FALSE(judge.step(NAN, NAN, true));
  const auto bad = judge.step(NAN, NAN, true);
  ASSERT_TRUE(bad);
  EXPECT_EQ(bad->act, BadStep::Act::stop);
  EXPECT_NE(bad->what.find("train.max_nonfinite = 2"), std::string::npos) << bad->what;
}

TEST(BadNumbers, AReturnLeavesTheBadStepsOut) {
  Judge judge("rollback", 2);
  const auto bad = judge.step(NAN, NAN, true);
  ASSERT_TRUE(bad);
  EXPECT_EQ(bad->act, BadStep::Act::rollback);
  for (const auto& [to, allowed] : {std::pair{0, true}, {0, true}, {0, false}, {4, true}, {4, true}, {4, false}})
    EXPECT_EQ(judge.numbers.may_return(to), allowed) << to;
  const auto known = judge.state;
  judge.state = numbers_state(to_json({.left_out = {7}}));  // as the checkpoint has it
  judge.numbers.go_back(known, bad->steps);
  EXPECT_FALSE(judge.numbers.may_return(4)) << "the returns are forgotten";
  EXPECT_EQ(numbers_state(to_json(judge.state)).returns, 4);
  EXPECT_TRUE(judge.numbers.leaves_out(7));
  EXPECT_FALSE(judge.numbers.due(0));
  EXPECT_TRUE(judge.numbers.leaves_out(1));
  EXPECT_FALSE(judge.numbers.leaves_out(2));
}

// On a GPU a rank may read a step when it has launched `lag` later ones; no rank may act before.
TEST(BadNumbers, AreActedOnWhenEveryRankHasReadThem) {
  TrainSection options;
  for (int read_after = 0; read_after <= 4; ++read_after) {
    NumbersState state;
    BadNumbers numbers(options, state);
    StepLog log{};
    log.at.global_step = 1;
    log.loss = NAN;
    for (int launched = 1; launched <= 6; ++launched) {
      numbers.launched();
      if (launched == 1 + read_after) (void)numbers.see(log, false);
      EXPECT_EQ(numbers.due(4).has_value(), launched >= 5) << read_after << " " << launched;
    }
  }
}

TEST(BadNumbers, ASpikeIsFarAboveTheMedian) {
  struct Row {
    double factor, loss;
    bool spike;
  };
  for (const auto& [factor, loss, spike] :
       {Row{8, 2.3, false}, {8, 3.0, true}, {8, 1.0, false}, {100, 3.0, false}, {0, 30.0, false}, {8, NAN, false}}) {
    Judge judge("skip");
    judge.options.loss_spike = factor;
    for (int i = 0; i < 40; ++i) {
      (void)judge.step(2 + 0.05 * (i % 5), 1);  // median 2.1, deviation 1.4826 * 0.05
      EXPECT_EQ(judge.line, "");
    }
    EXPECT_FALSE(judge.step(loss, 1));
    EXPECT_EQ(judge.line.starts_with("spike     step 41: the loss"), spike) << factor << " " << loss << judge.line;
  }
}

TEST(BadNumbers, AFewLossesAreNoMeasure) {
  Judge judge;
  judge.options.loss_spike = 8;
  for (std::size_t i = 0; i + 1 < BadNumbers::kLeastLosses; ++i) (void)judge.step(1, 1);
  (void)judge.step(100, 1);
  EXPECT_EQ(judge.line, "");
  (void)judge.step(100, 1);
  EXPECT_NE(judge.line, "");
}

TEST(BadNumbers, ASpikeStopsOrReturns) {
  for (const auto& [what, act] : {std::pair{"stop", BadStep::Act::stop}, {"rollback", BadStep::Act::rollback}}) {
    Judge judge;
    judge.options.loss_spike = 8;
    judge.options.on_loss_spike = what;
    for (int i = 0; i < 20; ++i) (void)judge.step(1, 1);
    const auto bad = judge.step(2, 1);
    ASSERT_TRUE(bad);
    EXPECT_EQ(bad->act, act);
    EXPECT_TRUE(bad->spike);
  }
}

// What a checkpoint stores decides as if the run had not stopped.
TEST(BadNumbers, AreStored) {
  NumbersState state{{3, 5}, {7, 8}, 1, 2, {0.5, 1.0 / 3}};
  const auto again = numbers_state(nlohmann::json::parse(to_json(state).dump()));
  EXPECT_EQ(again.left_out, state.left_out);
  EXPECT_EQ(again.series, state.series);
  EXPECT_EQ(again.bad_losses, state.bad_losses);
  EXPECT_EQ(again.skips, state.skips);
  EXPECT_EQ(again.losses, state.losses);
  EXPECT_TRUE(numbers_state(nullptr).left_out.empty());
}

TEST(BadNumbers, AValidationLossMustBeFinite) {
  EXPECT_NO_THROW(BadNumbers::check_validation(1, 0.5));
  EXPECT_THROW(BadNumbers::check_validation(1, INFINITY), NonFiniteError);
}

}  // namespace
}  // namespace trireme::train
