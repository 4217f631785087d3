// The executor's times: stages that sleep for known times take as long as the simulator predicts, on a busy machine
// too.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "core/base/trace.h"
#include "core/comm/host_values.h"
#include "core/pipeline/schedules.h"
#include "core/pipeline/simulator.h"
#include "tests/ranks/paced_stages.h"
#include "tests/ranks/world.h"

namespace trireme::tests {
namespace {

/// The begin and end of each of a step's actions on one rank, in order, and when train() was called and returned.
struct Went {
  double called = 0, returned = 0;
  std::vector<std::pair<double, double>> spans;
};

Went train_once(pipeline::Executor& executor, const std::vector<data::Batch>& micro) {
  Went went;
  executor.watch([&](const pipeline::Event& event) { went.spans.emplace_back(event.begin, event.end); });
  world().group().barrier();
  went.called = trace::now();
  executor.train(micro);
  went.returned = trace::now();
  return went;
}

std::vector<Went> gather(const Went& mine) {
  std::string text = fmt::format("{:.9f} {:.9f}", mine.called, mine.returned);
  for (const auto& [begin, end] : mine.spans) text += fmt::format(" {:.9f} {:.9f}", begin, end);
  std::vector<Went> all;
  std::string lines;  // every rank continues with the same numbers
  for (const auto& reported : comm::gather_text(world().group(), text)) lines += reported + "\n";
  std::istringstream of_each(comm::broadcast_text(world().group(), lines));
  for (std::string line; std::getline(of_each, line);) {
    std::istringstream fields(line);
    auto& went = all.emplace_back();
    fields >> went.called >> went.returned;
    for (double begin = 0, end = 0; fields >> begin >> end;) went.spans.emplace_back(begin, end);
  }
  return all;
}

/// Computes the time of a step without the delays that other programs on the machine cause. Each action has a delay,
/// from when its rank is free and its input is ready until it begins, and a duration. The minima over several steps are
/// the executor's own, because another program seldom delays the same action each time. step() replays a step with
/// them.
class Replay {
 public:
  explicit Replay(const Schedule& schedule) : schedule_(schedule) {
    for (const auto& actions : schedule.actions) own_.emplace_back(actions.size() + 1, Own{1e9, 1e9});
  }

  void add(const std::vector<Went>& step) {
    std::vector<double> made(schedule_.items());
    each_action([&](int rank, std::size_t i, const pipeline::Action& action) {
      if (action.op == pipeline::Op::backward_weight) return;  // nothing waits for it
      made[schedule_.item(action.op, schedule_.stage_of(rank, action.chunk), action.microbatch)] =
          of(step, rank).spans[i].second;
    });
    each_action([&](int rank, std::size_t i, const pipeline::Action& action) {
      const auto& went = of(step, rank);
      double ready = i > 0 ? went.spans[i - 1].second : rank == 0 ? went.called : 0;
      if (const int source = source_stage(schedule_, rank, action); source >= 0)
        ready = std::max(ready, made[schedule_.item(action.op, source, action.microbatch)]);
      const auto [begin, end] = went.spans[i];
      own(rank, i).least(begin - ready, end - begin);
    });
    for (int rank = 0; rank < schedule_.ranks; ++rank)
      own(rank, of(step, rank).spans.size()).least(of(step, rank).returned - of(step, rank).spans.back().second, 0);
  }

  [[nodiscard]] double step() const {
    std::vector<double> made(schedule_.items(), -1), free(static_cast<std::size_t>(schedule_.ranks));
    std::vector<std::size_t> next(free.size());
    for (bool more = true; more;) {
      more = false;
      for (int rank = 0; rank < schedule_.ranks; ++rank) {
        const auto r = static_cast<std::size_t>(rank);
        for (; next[r] < schedule_.actions[r].size(); ++next[r], more = true) {
          const auto& action = schedule_.actions[r][next[r]];
          double ready = free[r];
          if (const int source = source_stage(schedule_, rank, action); source >= 0) {
            const double at = made[schedule_.item(action.op, source, action.microbatch)];
            if (at < 0) break;
            ready = std::max(ready, at);
          }
          free[r] = ready + own_[r][next[r]].delay + own_[r][next[r]].duration;
          if (action.op != pipeline::Op::backward_weight)
            made[schedule_.item(action.op, schedule_.stage_of(rank, action.chunk), action.microbatch)] = free[r];
        }
      }
    }
    double end = 0;
    for (std::size_t r = 0; r < free.size(); ++r) end = std::max(end, free[r] + own_[r].back().delay);
    return end;
  }

 private:
  struct Own {
    double delay, duration;
    void least(double other_delay, double other_duration) {
      delay = std::min(delay, other_delay);
      duration = std::min(duration, other_duration);
    }
  };
  static const Went& of(const std::vector<Went>& step, int rank) { return step.at(static_cast<std::size_t>(rank)); }
  Own& own(int rank, std::size_t i) { return own_.at(static_cast<std::size_t>(rank)).at(i); }
  template <class Body>
  void each_action(Body body) {
    for (int rank = 0; rank < schedule_.ranks; ++rank) {
      const auto& actions = schedule_.actions[static_cast<std::size_t>(rank)];
      for (std::size_t i = 0; i < actions.size(); ++i) body(rank, i, actions[i]);
    }
  }
  Schedule schedule_;
  std::vector<std::vector<Own>> own_;  ///< for each action, then for what follows the last one
};

/// Seconds of a step whose stages sleep. No further step is measured once the result is near `expected`.
double measured(comm::Mesh& mesh, const Schedule& plan, const Setting& run, Seconds pace, double expected) {
  Multiply chunks(plan, world().rank(), pace);
  pipeline::Executor executor({run.name, run.chunks}, pipeline::Links(mesh, "pp"), chunks);
  const auto micro = batches(plan.microbatches, 2);
  executor.train(micro);  // the ranks agree on shapes
  constexpr int kMost = 8;
  Replay replay(plan);
  for (int attempt = 0; attempt < kMost && (attempt == 0 || replay.step() > 1.05 * expected); ++attempt)
    replay.add(gather(train_once(executor, micro)));
  return replay.step();
}

TEST(PipelineExecutorTime, MatchesTheSimulator) {
  TRIREME_ONLY_ON_CPU("the host sleeps in place of compute");
  if (world().size() < 2) GTEST_SKIP() << "needs more ranks";
  comm::Mesh mesh(world(), {{"pp", world().size()}});
  std::map<std::string, double> got, expected;
  for (const auto& run : {Setting{"gpipe", 0, 8}, Setting{"1f1b", 0, 8}, Setting{"interleaved", 2, 8},
                          Setting{"zb_h1", 0, 8}, Setting{"zbv", 0, 8}}) {
    const auto plan = pipeline::make_schedule({run.name, run.chunks}, world().size(), run.microbatches);
    const double unit = 0.03 / plan.chunks;
    const auto simulated = pipeline::simulate(
        plan, {.forward = {unit}, .backward_input = {unit}, .backward_weight = {unit}, .message = 0});
    expected[run.name] = simulated.step;
    got[run.name] = measured(mesh, plan, run, {unit, unit, unit}, simulated.step);
    EXPECT_NEAR(got[run.name], expected[run.name], 0.1 * expected[run.name]) << run.name;
  }
  for (const char* name : {"zb_h1", "zbv"})
    EXPECT_NEAR(got["1f1b"] - got[name], expected["1f1b"] - expected[name], 0.1 * expected["1f1b"]) << name;
}

}  // namespace
}  // namespace trireme::tests
