// Learning-rate curves against torch.optim.lr_scheduler (tests/golden/optim.json), warm-up, and refusals.
#include "core/optim/lr_schedule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/base/error.h"

namespace trireme::optim {
namespace {

using nlohmann::json;

/// The curve of this name, with the options that `given` has.
CurveFactory curve_of(const std::string& name, const json& given) {
  auto curve = all_curves().at(name);
  for (const auto& field : curve.fields().fields) {
    if (!given.contains(field.key)) continue;
    const auto& value = given[field.key];
    if (value.is_array())
      field.set(curve.options(), value.get<std::vector<std::int64_t>>());
    else if (value.is_number_integer() && field.type == FieldValue(std::int64_t{}).index())
      field.set(curve.options(), value.get<std::int64_t>());
    else
      field.set(curve.options(), value.get<double>());
  }
  return curve;
}

LrScheduleOptions options_of(const json& given) {
  return {.warmup_ratio = given.value("warmup_ratio", 0.0), .curve = curve_of(given["name"].get<std::string>(), given)};
}

TEST(Schedule, CurvesOfTorch) {
  const json data = json::parse(std::ifstream(TRIREME_SOURCE_DIR "/tests/golden/optim.json"));
  ASSERT_GE(data["schedules"].size(), 10u);
  for (const auto& row : data["schedules"]) {
    const double base = row["base_lr"];
    const LrSchedule schedule(options_of(row["options"]), base, row["total"]);
    for (std::size_t step = 0; step < row["lr"].size(); ++step)
      ASSERT_NEAR(schedule.lr(static_cast<std::int64_t>(step)), row["lr"][step].get<double>(), 1e-13 * base)
          << row["label"] << " step " << step;
  }
}

// Warm-up climbs to the full rate at its last step; then each schedule starts from its own first value.
TEST(Schedule, WarmUp) {
  for (const char* name : {"constant", "linear", "cosine", "polynomial", "step", "multi_step", "exponential"}) {
    const json early{{"step_size", 5}, {"milestones", {5}}}, late{{"step_size", 5}, {"milestones", {9}}};
    const LrSchedule warm({.warmup_steps = 4, .curve = curve_of(name, late)}, 2.0, 20);
    const LrSchedule plain({.curve = curve_of(name, early)}, 2.0, 16);
    for (std::int64_t s = 0; s < 4; ++s) EXPECT_DOUBLE_EQ(warm.lr(s), 2.0 * static_cast<double>(s + 1) / 4) << name;
    for (std::int64_t s = 4; s < 20; ++s) EXPECT_DOUBLE_EQ(warm.lr(s), plain.lr(s - 4)) << name << s;
    EXPECT_DOUBLE_EQ(warm.lr(4), 2.0) << name;
  }
}

TEST(Schedule, ExponentialAndStable) {
  const LrSchedule falling({.warmup_steps = 2, .curve = exponential({.gamma = 0.5})}, 8, 10);
  for (std::int64_t s = 2; s < 10; ++s) EXPECT_DOUBLE_EQ(falling.lr(s), 8 * std::pow(0.5, s - 2)) << s;
  // 4 steps of warm-up, 10 at the base rate, 6 of decay to a fifth.
  for (const auto& [form, half] : {std::pair{"linear", 0.5}, {"cosine", 0.5}, {"one_minus_sqrt", 1 - std::sqrt(0.5)}}) {
    WarmupStableDecayOptions options;
    options.decay_ratio = 0.3;
    options.decay = form;
    options.min_lr_factor = 0.2;
    const LrSchedule schedule({.warmup_steps = 4, .curve = warmup_stable_decay(options)}, 1, 20);
    EXPECT_DOUBLE_EQ(schedule.lr(1), 0.5);
    for (const std::int64_t s : {3, 4, 9, 14}) EXPECT_NEAR(schedule.lr(s), 1, 1e-12) << form << s;
    EXPECT_NEAR(schedule.lr(17), 0.2 + 0.8 * half, 1e-12) << form;
    EXPECT_NEAR(schedule.lr(20), 0.2, 1e-12) << form;
    EXPECT_THROW(LrSchedule({.warmup_steps = 15, .curve = warmup_stable_decay(options)}, 1, 20), ConfigError);
  }
}

TEST(Schedule, FloorEndsAndText) {
  for (const char* name : {"linear", "cosine", "polynomial"}) {
    const LrSchedule schedule({.curve = curve_of(name, {{"min_lr_factor", 0.25}})}, 4.0, 10);
    EXPECT_DOUBLE_EQ(schedule.lr(10), 1.0) << name;
    EXPECT_DOUBLE_EQ(schedule.lr(1000), 1.0) << name;
    EXPECT_GT(schedule.lr(9), 1.0) << name;
  }
  LrScheduleOptions o{.curve = cosine()};
  EXPECT_EQ(LrSchedule(o, 1, 10).describe(), "cosine");
  o.warmup_ratio = 0.1;
  EXPECT_EQ(LrSchedule(o, 1, 100).describe(), "cosine with 10 % warm-up");
  o.warmup_ratio = 0;
  o.warmup_steps = 7;
  EXPECT_EQ(LrSchedule(o, 1, 100).describe(), "cosine with 7 warm-up steps");
  o.warmup_steps = 100;
  EXPECT_DOUBLE_EQ(LrSchedule(o, 1, 100).lr(99), 1.0);
  o = {.curve = one_cycle()};
  for (const std::int64_t total : {1, 2, 3, 4}) {
    const LrSchedule schedule(o, 1, total);
    for (std::int64_t s = 0; s < total; ++s)
      EXPECT_TRUE(schedule.lr(s) > 0 && schedule.lr(s) <= 1) << total << " " << s;
  }
}

TEST(Schedule, Refusals) {
  struct Row {
    LrScheduleOptions options;
    std::string says;
    std::int64_t total = 100;
  };
  const std::vector<Row> rows{
      {{.warmup_steps = 5, .warmup_ratio = 0.1}, "; set only one of them"},
      {{.warmup_steps = 101}, "schedule.warmup_steps sets 101 warm-up steps, but the training has only 100"},
      {{.warmup_ratio = 1.5}, "schedule.warmup_ratio = 1.5: it must be at least 0 and below 1"},
      {{.warmup_steps = -1}, "schedule.warmup_steps = -1: it must be at least 0"},
      {{.warmup_steps = 5, .curve = one_cycle()}, "schedule.warmup_steps: has no effect with name = \"one_cycle\""},
      {{.curve = step_drops()}, "[schedule] step_size: is required"},
      {{.curve = milestone_drops()}, "[schedule] milestones: are required"},
      {{.curve = milestone_drops({.milestones = {5, 5}})}, "must be in ascending order"},
      {{.warmup_steps = 8, .curve = milestone_drops({.milestones = {5}})}, "at least 8"},
      {{.curve = cosine({.min_lr_factor = 2})}, "schedule.min_lr_factor = 2.0: it must be at least 0 and at most 1"},
      {{}, "no optimizer step", 0},
  };
  for (const auto& [options, says, total] : rows) {
    try {
      const LrSchedule schedule(options, 1, total);
      ADD_FAILURE() << "accepted; should say: " << says;
    } catch (const ConfigError& error) {
      EXPECT_NE(std::string(error.what()).find(says), std::string::npos) << error.what();
    }
  }
}

// A user's schedule is a function.
TEST(Schedule, AUsersFunction) {
  const LrScheduleOptions options{.warmup_steps = 2, .curve = {"halves", [](const CurveRange& range) -> Curve {
                                                                 return [warm = range.warmup](std::int64_t step) {
                                                                   return std::pow(0.5,
                                                                                   static_cast<double>(step - warm));
                                                                 };
                                                               }}};
  const LrSchedule schedule(options, 8.0, 10);
  EXPECT_DOUBLE_EQ(schedule.lr(0), 4.0);
  EXPECT_DOUBLE_EQ(schedule.lr(2), 8.0);
  EXPECT_DOUBLE_EQ(schedule.lr(5), 1.0);
  EXPECT_EQ(schedule.describe(), "halves with 2 warm-up steps");
}

}  // namespace
}  // namespace trireme::optim
