// Schedules by name, which parameters they accept, and the programs they are lowered to.
#include "core/pipeline/schedules.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "core/base/error.h"
#include "core/pipeline/schedule.h"
#include "core/pipeline/verifier.h"
#include "pipeline/links.h"
#include "tests/unit/pipeline/cases.h"

namespace trireme::pipeline {
namespace {

TEST(Schedules, ByName) {
  EXPECT_EQ(all_schedules().names(), (std::vector<std::string>{"1f1b", "gpipe", "interleaved", "zb_h1", "zbv"}));
  for (const auto& name : all_schedules().names()) {
    const auto schedule = make_schedule({name}, 3, 4);
    EXPECT_EQ(schedule.name, name);
    EXPECT_EQ(schedule.stages(), name == "interleaved" || name == "zbv" ? 6 : 3);
  }
  EXPECT_EQ(make_schedule({"zbv", 2}, 3, 4).actions, zbv(3, 4).actions);
  EXPECT_EQ(interleaved(4, 6, 1).actions, one_f_one_b(4, 6).actions);
}

TEST(Schedules, RefusalsNameTheKeyAndTheRemedy) {
  struct Wrong {
    Case c;
    std::vector<std::string> texts;
  };
  const std::vector<Wrong> wrongs{
      {{"1f1", 2, 0, 4}, {"no pipeline schedule \"1f1\"", "1f1b, gpipe,", "did you mean \"1f1b\"?"}},
      {{"interleaved", 2, 1, 4}, {"1", "interleaved, which has 2 or more", "schedule = \"1f1b\""}},
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

TEST(Schedules, OnesOwnAreMadeAndProven) {
  Plan plan{.schedule = "own"};
  const auto own = [&](auto change) {
    plan.known = all_schedules();
    plan.known.add("own", {.make =
                               [change](int ranks, int microbatches, int chunks) {
                                 auto schedule = interleaved(ranks, microbatches, chunks);
                                 change(schedule);
                                 return schedule;
                               },
                           .chunks = 3});
  };
  own([](Schedule&) {});
  EXPECT_EQ(make_schedule(plan, 2, 4).name, "own");
  EXPECT_EQ(make_schedule(plan, 2, 4).actions, interleaved(2, 4, 3).actions);
  const auto refused = [&](const std::string& text) {
    try {
      make_schedule(plan, 2, 4);
      ADD_FAILURE() << text;
    } catch (const ConfigError& e) {
      EXPECT_NE(
          std::string(e.what()).find("the schedule own is wrong for 2 ranks with 3 chunks each, and 4 microbatches: " +
                                     text + "; choose another one, or mend the function that makes it"),
          std::string::npos)
          << e.what();
    }
  };
  own([](Schedule& schedule) { schedule.actions[1].clear(); });
  refused("rank 1, at its end: stage 1 (chunk 0) has only 0 of 4 forwards");
  own([](Schedule& schedule) { schedule.actions[0].insert(schedule.actions[0].begin(), {Op::forward, 0, 0}); });
  refused("rank 0, action 1: forward of stage 0 (chunk 0), microbatch 0: microbatch 1 comes first");
  own([](Schedule& schedule) { schedule = interleaved(3, 4, 3); });
  refused("it is for 3 ranks with 3 chunks each, and 4 microbatches");
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

TEST(Program, ReceivesAreOneActionAheadAndSendsFollowTheirs) {
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

TEST(Program, ReceivesAtUseAreDirectlyBeforeTheirAction) {
  for (const auto& c : all_cases(5, 8)) {
    const auto schedule = c.schedule();
    const auto programs = lower(schedule, Posting::at_use);
    ASSERT_EQ(verify(schedule, programs), "") << c.text();
    for (const auto& program : programs) {
      // After a receive come receives, then the action that needs them; nothing is computed or sent in between.
      for (std::size_t i = 0; i < program.size(); ++i) {
        if (!is_receive(program[i].kind)) continue;
        auto next = i;
        while (is_receive(program[next].kind)) ++next;
        ASSERT_EQ(program[next].kind, Kind::compute) << c.text();
        ASSERT_EQ(program[next].action, program[next - 1].action) << c.text();
        i = next;
      }
    }
  }
}

/// Simulates ranks that connect to their peers in order, each waiting for the other. Returns how many never finish.
int stuck(std::vector<std::vector<int>> peers) {
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t a = 0; a < peers.size(); ++a) {
      if (peers[a].empty()) continue;
      auto& theirs = peers[static_cast<std::size_t>(peers[a][0])];
      if (theirs.empty() || theirs[0] != static_cast<int>(a)) continue;
      peers[a].erase(peers[a].begin());
      theirs.erase(theirs.begin());
      moved = true;
    }
  }
  return static_cast<int>(std::count_if(peers.begin(), peers.end(), [](const auto& left) { return !left.empty(); }));
}

TEST(Links, NeighboursConnectBeforeAnyScheduleNeedsThem) {
  for (int ranks = 1; ranks <= 17; ++ranks) {
    std::vector<std::vector<int>> peers;
    for (int rank = 0; rank < ranks; ++rank) peers.push_back(meeting_order(rank, ranks));
    EXPECT_EQ(stuck(peers), 0) << ranks;
    for (const auto& c : all_cases(8, 4)) {
      if (c.ranks != ranks) continue;
      const auto programs = lower(c.schedule());
      for (std::size_t rank = 0; rank < programs.size(); ++rank)
        for (const auto& instruction : programs[rank])
          ASSERT_TRUE(instruction.peer < 0 || std::count(peers[rank].begin(), peers[rank].end(), instruction.peer) == 1)
              << c.text() << ": rank " << rank << " and " << instruction.peer;
    }
  }
  // If ranks connected at their first message instead, the interleaved schedule would deadlock.
  std::vector<std::vector<int>> first;
  for (const auto& program : lower(interleaved(3, 1, 2))) {
    auto& peers = first.emplace_back();
    for (const auto& instruction : program)
      if (instruction.peer >= 0 && std::count(peers.begin(), peers.end(), instruction.peer) == 0)
        peers.push_back(instruction.peer);
  }
  EXPECT_GT(stuck(first), 0);
}

TEST(Program, NothingIsSentWithinARank) {
  for (const auto& c : all_cases(1, 4)) {
    const auto programs = lower(c.schedule());
    for (const auto& instruction : programs[0]) EXPECT_EQ(instruction.kind, Kind::compute) << c.text();
  }
  const auto programs = lower(zbv(3, 4));
  for (const auto& instruction : programs[2])  // rank 2 is the turn of the V and communicates with rank 1 alone
    if (instruction.kind != Kind::compute) {
      const bool crosses = (instruction.action.chunk == 0) ==
                           (instruction.kind == Kind::recv_activation || instruction.kind == Kind::send_gradient);
      EXPECT_TRUE(crosses) << name(instruction.kind) << " of chunk " << instruction.action.chunk;
      EXPECT_EQ(instruction.peer, 1);
    }
}

}  // namespace
}  // namespace trireme::pipeline
