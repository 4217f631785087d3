// Learning-rate curves against torch.optim.lr_scheduler (tests/golden/optim.json), warm-up, and refusals.
#include "core/optim/lr_schedule.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "core/base/error.h"

namespace trireme::optim {
namespace {

using nlohmann::json;

config::LrScheduleOptions options_of(const json& given) {
  config::LrScheduleOptions o;
  o.name = given["name"].get<std::string>();
  o.warmup_ratio = given.value("warmup_ratio", 0.0);
  o.min_lr_factor = given.value("min_lr_factor", o.min_lr_factor);
  o.step_size = given.value("step_size", o.step_size);
  if (given.contains("milestones")) o.milestones = given["milestones"].get<std::vector<std::int64_t>>();
  o.gamma = given.value("gamma", o.gamma);
  o.power = given.value("power", o.power);
  o.div_factor = given.value("div_factor", o.div_factor);
  o.final_div_factor = given.value("final_div_factor", o.final_div_factor);
  o.pct_start = given.value("pct_start", o.pct_start);
  return o;
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
  for (const char* name : {"constant", "linear", "cosine", "polynomial", "step", "multi_step"}) {
    config::LrScheduleOptions o, late;
    o.name = late.name = name;
    o.warmup_steps = 4;
    if (o.name == "step") o.step_size = late.step_size = 5;
    if (o.name == "multi_step") o.milestones = {9}, late.milestones = {5};
    const LrSchedule warm(o, 2.0, 20), plain(late, 2.0, 16);
    for (std::int64_t s = 0; s < 4; ++s) EXPECT_DOUBLE_EQ(warm.lr(s), 2.0 * static_cast<double>(s + 1) / 4) << name;
    for (std::int64_t s = 4; s < 20; ++s) EXPECT_DOUBLE_EQ(warm.lr(s), plain.lr(s - 4)) << name << s;
    EXPECT_DOUBLE_EQ(warm.lr(4), 2.0) << name;
  }
}

TEST(Schedule, FloorEndsAndText) {
  config::LrScheduleOptions o;
  for (const char* name : {"linear", "cosine", "polynomial"}) {
    o.name = name;
    o.min_lr_factor = 0.25;
    const LrSchedule schedule(o, 4.0, 10);
    EXPECT_DOUBLE_EQ(schedule.lr(10), 1.0) << name;
    EXPECT_DOUBLE_EQ(schedule.lr(1000), 1.0) << name;
    EXPECT_GT(schedule.lr(9), 1.0) << name;
  }
  o = {};
  o.name = "cosine";
  EXPECT_EQ(LrSchedule(o, 1, 10).describe(), "cosine");
  o.warmup_ratio = 0.1;
  EXPECT_EQ(LrSchedule(o, 1, 100).describe(), "cosine with 10 % warm-up");
  o.warmup_ratio = 0;
  o.warmup_steps = 7;
  EXPECT_EQ(LrSchedule(o, 1, 100).describe(), "cosine with 7 warm-up steps");
  o.warmup_steps = 100;
  EXPECT_DOUBLE_EQ(LrSchedule(o, 1, 100).lr(99), 1.0);
  o = {};
  o.name = "one_cycle";
  for (const std::int64_t total : {1, 2, 3, 4}) {
    const LrSchedule schedule(o, 1, total);
    for (std::int64_t s = 0; s < total; ++s)
      EXPECT_TRUE(schedule.lr(s) > 0 && schedule.lr(s) <= 1) << total << " " << s;
  }
}

TEST(Schedule, Refusals) {
  struct Row {
    std::function<void(config::LrScheduleOptions&)> change;
    std::string says;
    std::int64_t total = 100;
  };
  const std::vector<Row> rows{
      {[](auto& o) { o.name = "cosin"; }, "did you mean \"cosine\"?"},
      {[](auto& o) {
         o.warmup_steps = 5;
         o.warmup_ratio = 0.1;
       },
       "; set only one of them"},
      {[](auto& o) { o.warmup_steps = 101; },
       "schedule.warmup_steps sets 101 warm-up steps, but the training has only 100"},
      {[](auto& o) { o.warmup_ratio = 1.5; }, "schedule.warmup_ratio = 1.5: it must be at least 0 and below 1"},
      {[](auto& o) { o.warmup_steps = -1; }, "schedule.warmup_steps = -1: it must be at least 0"},
      {[](auto& o) {
         o.name = "one_cycle";
         o.warmup_steps = 5;
       },
       "schedule.warmup_steps = 5: has no effect with name = \"one_cycle\""},
      {[](auto& o) { o.name = "step"; }, "[schedule] step_size: is required"},
      {[](auto& o) { o.name = "multi_step"; }, "[schedule] milestones: are required"},
      {[](auto& o) {
         o.name = "multi_step";
         o.milestones = {5, 5};
       },
       "must be in ascending order"},
      {[](auto& o) {
         o.name = "multi_step";
         o.milestones = {5};
         o.warmup_steps = 8;
       },
       "at least 8"},
      {[](auto& o) {
         o.name = "cosine";
         o.step_size = 4;
       },
       "schedule.step_size = 4: has no effect"},
      {[](auto& o) { o.min_lr_factor = 0.1; }, "schedule.min_lr_factor = 0.1: has no effect with name = \"constant\""},
      {[](auto& o) {
         o.name = "linear";
         o.gamma = 0.5;
       },
       "schedule.gamma = 0.5: has no effect"},
      {[](auto&) {}, "no optimizer step", 0},
  };
  for (const auto& [change, says, total] : rows) {
    config::LrScheduleOptions options;
    change(options);
    try {
      const LrSchedule schedule(options, 1, total);
      ADD_FAILURE() << "accepted; should say: " << says;
    } catch (const ConfigError& error) {
      EXPECT_NE(std::string(error.what()).find(says), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace trireme::optim
