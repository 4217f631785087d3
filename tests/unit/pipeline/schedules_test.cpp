// Schedules by name, what a user may ask of them, and the programs they become.
#include "pipeline/schedule/schedules.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "core/base/error.h"
#include "pipeline/schedule/program.h"
#include "tests/unit/pipeline/cases.h"

namespace trireme::pipeline {
namespace {

TEST(Schedules, ByName) {
  EXPECT_EQ(schedule_names(), (std::vector<std::string>{"gpipe", "1f1b", "interleaved", "zb_h1", "zbv"}));
  for (const auto& name : schedule_names()) {
    const auto schedule = make_schedule(name, 3, name == "interleaved" ? 2 : 0, 4);
    EXPECT_EQ(schedule.name, name);
    EXPECT_EQ(schedule.stages(), name == "interleaved" || name == "zbv" ? 6 : 3);
  }
  EXPECT_EQ(make_schedule("zbv", 3, 2, 4).actions, zbv(3, 4).actions);
  EXPECT_EQ(interleaved(4, 6, 1).actions, one_f_one_b(4, 6).actions);
}

TEST(Schedules, RefusalsNameTheKeyAndTheRemedy) {
  struct Wrong {
    Case c;
    std::vector<std::string> texts;
  };
  const std::vector<Wrong> wrongs{
      {{"1f1", 2, 0, 4}, {"no schedule \"1f1\"", "gpipe, 1f1b,", "did you mean \"1f1b\"?"}},
      {{"interleaved", 2, 0, 4}, {"schedule interleaved", "needs it; give 2 or more"}},
      {{"interleaved", 2, 1, 4}, {"interleaved with 1", "schedule = \"1f1b\""}},
      {{"1f1b", 2, 2, 4}, {"2", "1f1b", "leave the key out", "schedule = \"interleaved\""}},
      {{"zbv", 2, 3, 4}, {"3", "zbv, which has 2", "leave the key out"}},
      {{"zbv", 2, 1, 4}, {"1", "zbv, which has 2", "leave the key out"}},
      {{"gpipe", 2, -1, 4}, {"-1", "leave the key out"}},
      {{"gpipe", 2, 0, 0}, {"0 microbatches", "give 1 or more"}},
  };
  for (const auto& [c, texts] : wrongs) try {
      ADD_FAILURE() << c.text() << " made " << c.schedule().name;
    } catch (const ConfigError& e) {
      for (const auto& text : texts) EXPECT_NE(std::string(e.what()).find(text), std::string::npos) << e.what();
    }
  EXPECT_THROW(gpipe(0, 1), LogicError);
  EXPECT_THROW(interleaved(1, 1, 0), LogicError);
}

TEST(Schedules, StagesOnRanks) {
  const auto loop = interleaved(3, 3, 2), v = zbv(3, 3);
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(loop.stage_of(rank, 0), rank);
    EXPECT_EQ(loop.stage_of(rank, 1), 3 + rank);
    EXPECT_EQ(v.stage_of(rank, 0), rank);
    EXPECT_EQ(v.stage_of(rank, 1), 5 - rank);
  }
}

TEST(Program, ReceivesStandAnActionAheadAndSendsFollowTheirs) {
  for (const auto& c : all_cases(5, 8))
    for (const auto& program : lower(c.schedule())) {
      const auto computes = [&](const Instruction& message) {
        return std::find(program.begin(), program.end(), Instruction{Kind::compute, message.action, -1});
      };
      for (auto it = program.begin(); it != program.end(); ++it) {
        if (is_send(it->kind)) {
          ASSERT_EQ(*(it - 1), *computes(*it)) << c.text();
        }
        if (!is_receive(it->kind)) continue;
        const auto first =
            std::find_if(program.begin(), program.end(), [](const Instruction& i) { return i.kind == Kind::compute; });
        const auto ahead =
            std::count_if(it, computes(*it), [](const Instruction& i) { return i.kind == Kind::compute; });
        ASSERT_TRUE(ahead >= 1 || computes(*it) == first) << c.text();
      }
    }
}

TEST(Program, NothingIsSentWithinARank) {
  for (const auto& c : all_cases(1, 4)) {
    const auto programs = lower(c.schedule());
    for (const auto& instruction : programs[0]) EXPECT_EQ(instruction.kind, Kind::compute) << c.text();
  }
  const auto programs = lower(zbv(3, 4));
  for (const auto& instruction : programs[2])  // the turn of the V: it talks to rank 1 alone
    if (instruction.kind != Kind::compute) {
      const bool crosses = (instruction.action.chunk == 0) ==
                           (instruction.kind == Kind::recv_activation || instruction.kind == Kind::send_gradient);
      EXPECT_TRUE(crosses) << name(instruction.kind) << " of chunk " << instruction.action.chunk;
      EXPECT_EQ(instruction.peer, 1);
    }
}

}  // namespace
}  // namespace trireme::pipeline
