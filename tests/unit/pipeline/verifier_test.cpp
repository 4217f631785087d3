// The verifier passes every schedule and catches every planted fault.
#include "core/pipeline/verifier.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "core/base/error.h"
#include "tests/unit/pipeline/cases.h"

namespace trireme::pipeline {
namespace {

using Programs = std::vector<Program>;

TEST(Verifier, ProvesEverySchedule) {
  for (const auto& c : all_cases()) {
    const auto schedule = c.schedule();
    const auto programs = lower(schedule);
    ASSERT_EQ(verify(schedule, programs), "") << c.text();
    // Each border between stages of two ranks is crossed twice by each microbatch.
    int borders = 0;
    for (int stage = 1; stage < schedule.stages(); ++stage)
      if (schedule.location_of(stage).rank != schedule.location_of(stage - 1).rank) ++borders;
    int messages = 0;
    for (const auto& program : programs)
      for (const auto& instruction : program) messages += is_send(instruction.kind) ? 1 : 0;
    ASSERT_EQ(messages, 2 * borders * c.microbatches) << c.text();
  }
}

TEST(Verifier, OmissionsAndDuplicatesAreFound) {
  for (const auto& c : std::vector<Case>{{"gpipe", 3, 0, 3},
                                         {"1f1b", 3, 0, 4},
                                         {"interleaved", 2, 2, 3},
                                         {"zb_h1", 3, 0, 4},
                                         {"zbv", 3, 0, 3},
                                         {"zbv", 1, 0, 2}}) {
    const auto schedule = c.schedule();
    for (std::size_t rank = 0; rank < schedule.actions.size(); ++rank)
      for (std::size_t i = 0; i < schedule.actions[rank].size(); ++i) {
        const auto at = static_cast<std::ptrdiff_t>(i);
        auto less = schedule, more = schedule;
        less.actions[rank].erase(less.actions[rank].begin() + at);
        more.actions[rank].insert(more.actions[rank].begin() + at, schedule.actions[rank][i]);
        EXPECT_NE(verify(less), "") << c.text() << ", without " << schedule.describe(0, schedule.actions[rank][i]);
        EXPECT_NE(verify(more), "") << c.text() << ", twice " << schedule.describe(0, schedule.actions[rank][i]);
      }
    const auto programs = lower(schedule);
    for (std::size_t rank = 0; rank < programs.size(); ++rank)
      for (std::size_t i = 0; i < programs[rank].size(); ++i) {
        const auto at = static_cast<std::ptrdiff_t>(i);
        auto less = programs, more = programs;
        less[rank].erase(less[rank].begin() + at);
        more[rank].insert(more[rank].begin() + at, programs[rank][i]);
        EXPECT_NE(verify(schedule, less), "") << c.text() << ", rank " << rank << " without instruction " << i;
        EXPECT_NE(verify(schedule, more), "") << c.text() << ", rank " << rank << ", twice instruction " << i;
      }
  }
}

struct ScheduleFault {
  const char* what;
  Schedule schedule;
  std::string text;  ///< a part of the violation
};

Schedule with(Schedule schedule, const std::function<void(std::vector<std::vector<Action>>&)>& change) {
  change(schedule.actions);
  return schedule;
}

TEST(Verifier, SaysWhatIsWrongWithASchedule) {
  const auto f = [](int chunk, int i) { return Action{Op::forward, chunk, i}; };
  const auto b = [](int chunk, int i) { return Action{Op::backward, chunk, i}; };
  const auto plain = one_f_one_b(2, 3);  // rank 0: F0 F1 B0 F2 B1 B2, rank 1: F0 B0 F1 B1 F2 B2
  const std::vector<ScheduleFault> faults{
      {"a backward before its forward", with(plain, [](auto& a) { std::swap(a[1][0], a[1][1]); }),
       "rank 1, action 0: backward of stage 1 (chunk 0), microbatch 0: its forward has not run yet"},
      {"microbatches out of order", with(plain, [](auto& a) { std::swap(a[0][0], a[0][1]); }),
       "rank 0, action 0: forward of stage 0 (chunk 0), microbatch 1: microbatch 0 comes first"},
      {"a microbatch twice", with(plain, [](auto& a) { a[0][1] = a[0][0]; }),
       "rank 0, action 1: forward of stage 0 (chunk 0), microbatch 0: microbatch 1 comes first"},
      {"one too many", with(plain, [](auto& a) { a[1].push_back(a[1].back()); }),
       "rank 1, action 6: backward of stage 1 (chunk 0), microbatch 2: all microbatches have already been done"},
      {"the last backward missing", with(plain, [](auto& a) { a[0].pop_back(); }),
       "rank 0, at its end: stage 0 (chunk 0) has only 2 of 3 input gradients"},
      {"a chunk that is none", with(plain, [&](auto& a) { a[1][0].chunk = 1; }),
       "rank 1, action 0: there is no chunk 1 with a microbatch 0"},
      {"a microbatch that is none", with(plain, [&](auto& a) { a[1][0].microbatch = 3; }), "with a microbatch 3"},
      {"a rank without a list", with(plain, [](auto& a) { a.pop_back(); }),
       "there are lists of actions for 1 ranks, not for 2"},
      {"the weight gradient first", with(zb_h1(1, 1), [](auto& a) { std::swap(a[0][1], a[0][2]); }),
       "rank 0, action 1: backward_weight of stage 0 (chunk 0), microbatch 0: its input gradient has not been computed "
       "yet"},
      {"no weight gradient", with(zb_h1(1, 1), [](auto& a) { a[0].pop_back(); }), "has only 0 of 1 weight gradients"},
      {"a whole backward after halves",
       with(zb_h1(1, 2),
            [&](auto& a) {
              a[0] = {f(0, 0), f(0, 1), {Op::backward_input, 0, 0}, b(0, 1)};
            }),
       "rank 0, action 3: backward of stage 0 (chunk 0), microbatch 1: earlier weight gradients have not been computed "
       "yet"},
      {"two ranks that wait for each other",
       with(one_f_one_b(2, 2),
            [&](auto& a) {
              a = {{f(0, 0), b(0, 0), f(0, 1), b(0, 1)}, {f(0, 0), f(0, 1), b(0, 0), b(0, 1)}};
            }),
       "rank 0, instruction 3: backward of stage 0 (chunk 0), microbatch 0 waits forever for the gradient of stage 1, "
       "while the sender is at rank 1, instruction 3: forward of stage 1 (chunk 0), microbatch 1"},
      {"a rank that waits for itself", with(interleaved(1, 1, 2), [&](auto& a) { std::swap(a[0][0], a[0][1]); }),
       "rank 0, instruction 0: forward of stage 1 (chunk 1), microbatch 0 waits forever for the activation of stage 0, "
       "which it produces later"},
  };
  for (const auto& fault : faults)
    EXPECT_NE(verify(fault.schedule).find(fault.text), std::string::npos)
        << fault.what << ": " << verify(fault.schedule);
}

TEST(Verifier, SaysWhatIsWrongWithAProgram) {
  const auto schedule = one_f_one_b(2, 2);
  // Rank 0 runs F0, recv B0, F1 ...; an instruction's position is looked up by its kind and action.
  const auto at = [](Program& program, Kind kind, int microbatch, Op op = Op::forward) {
    return std::find_if(program.begin(), program.end(), [&](const Instruction& i) {
      return i.kind == kind && i.action.microbatch == microbatch && (kind != Kind::compute || i.action.op == op);
    });
  };
  struct Fault {
    const char* what;
    std::function<void(Programs&)> plant;
    std::string text;
  };
  const std::vector<Fault> faults{
      {"a send left out", [&](auto& p) { p[0].erase(at(p[0], Kind::send_activation, 1)); },
       "rank 0, at its program's end: the result of forward of stage 0 (chunk 0), microbatch 1 is not sent to rank 1"},
      {"a receive left out", [&](auto& p) { p[0].erase(at(p[0], Kind::recv_gradient, 0)); },
       "backward of stage 0 (chunk 0), microbatch 0: its receive from rank 1 has not been posted"},
      {"a receive too late",
       [&](auto& p) { std::swap(*at(p[1], Kind::recv_activation, 0), *at(p[1], Kind::compute, 0)); },
       "rank 1, instruction 0: forward of stage 1 (chunk 0), microbatch 0: its receive"},
      {"a send too early",
       [&](auto& p) { std::swap(*at(p[0], Kind::send_activation, 0), *at(p[0], Kind::compute, 0)); },
       "rank 0, instruction 0: send_activation to 1, of forward of stage 0 (chunk 0), microbatch 0: before it is "
       "computed"},
      {"a send twice", [&](auto& p) { p[0].push_back(*at(p[0], Kind::send_activation, 0)); }, "a second time"},
      {"to a rank that is not next", [&](auto& p) { at(p[0], Kind::send_activation, 0)->peer = 0; },
       "not the rank of the neighbour stage"},
      {"an activation as a gradient", [&](auto& p) { at(p[0], Kind::send_activation, 0)->kind = Kind::send_gradient; },
       "no action of this rank has such a message"},
      {"a message of no microbatch", [&](auto& p) { at(p[0], Kind::send_activation, 0)->action.microbatch = 2; },
       "no action of this rank has such a message"},
      {"sends in another order than receives",
       [&](auto& p) {
         const auto second = *at(p[0], Kind::send_activation, 1);
         p[0].erase(at(p[0], Kind::send_activation, 1));
         const auto first = *at(p[0], Kind::send_activation, 0);
         p[0].erase(at(p[0], Kind::send_activation, 0));
         const auto after = at(p[0], Kind::compute, 1) + 1;
         p[0].insert(p[0].insert(after, first), second);
       },
       "recv_activation from 0, of forward of stage 1 (chunk 0), microbatch 0: message 0 from rank 0, but that rank "
       "sends rank 0, instruction"},
      {"computing in another order",
       [&](auto& p) { std::swap(*at(p[1], Kind::compute, 0), *at(p[1], Kind::compute, 1)); },
       "not what the schedule computes here"},
      {"a program missing", [&](auto& p) { p.pop_back(); }, "there are programs for 1 ranks, not for 2"},
  };
  for (const auto& fault : faults) {
    auto programs = lower(schedule);
    fault.plant(programs);
    const auto violation = verify(schedule, programs);
    EXPECT_NE(violation.find(fault.text), std::string::npos) << fault.what << ": " << violation;
  }
}

}  // namespace
}  // namespace trireme::pipeline
