#include "apps/front/restarts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "apps/front/launch.h"
#include "apps/report.h"
#include "core/base/text.h"
#include "core/train/restart.h"

namespace trireme::apps {
namespace {

std::vector<std::string> arguments_to_go_on(const TrainCommand& command, std::int64_t ranks) {
  std::vector<std::string> out{"train", command.config, "--ranks", std::to_string(ranks), "--resume", "auto"};
  for (const auto& set : command.set)
    if (!set.starts_with("run.resume=")) out.insert(out.end(), {"--set", set});
  if (command.timeline) out.emplace_back("--timeline");
  return out;
}

/// The most ranks from `ranks` down to `least` on which the training can go on; 0: none.
std::int64_t possible_ranks(const TrainCommand& command, std::int64_t ranks, std::int64_t least) {
  while (ranks >= least && check(arguments_to_go_on(command, ranks), Report::no) != 0) --ranks;
  return std::max<std::int64_t>(0, ranks >= least ? ranks : 0);
}

}  // namespace

int with_restarts(std::int64_t most, const std::function<RunEnd(const Attempt&)>& start) {
  std::int64_t furthest = -1;
  for (Attempt attempt;;) {
    const auto end = start(attempt);
    if (end.death.empty() || most == 0) return end.code;
    if (attempt.number == most) {
      say_error(fmt::format("not started again: {} of --max-restarts {} made", text::quantity(most, "restart"), most));
      return end.code;
    }
    attempt = {attempt.number + 1, end.step > furthest};
    furthest = std::max(furthest, end.step);
    put(fitted(fmt::format("restart   {} of {}, after: {}\n", attempt.number, most, end.death)));
    setenv(train::kRestartVariable, fmt::format("{} {}", attempt.number, end.death).c_str(), 1);
  }
}

int train_with_restarts(TrainCommand command, std::int64_t threads, const std::vector<std::string>& arguments) {
  auto ranks = command.ranks.value_or(1);
  const auto least = command.min_ranks.value_or(ranks);
  bool retried = false;
  const auto run = [&](const std::vector<std::string>& with, Check first) {
    const auto end = run_ranks(ranks, threads, with, first, OnStop::ask);
    if (end.smaller_micro_batch == 0 || std::exchange(retried, true)) return end;
    const auto smaller = fmt::format("train.micro_batch={}", end.smaller_micro_batch);
    command.set.push_back(smaller);
    put(fitted(fmt::format("retry     with {}, because memory ran out (train.on_oom)\n", smaller)));
    setenv(train::kRestartVariable, ("0 out of memory; " + smaller).c_str(), 1);
    return run_ranks(ranks, threads, arguments_to_go_on(command, ranks), Check::no, OnStop::ask);
  };
  return with_restarts(command.max_restarts, [&](const Attempt& attempt) {
    if (attempt.number == 0) return run(arguments, Check::yes);
    const auto before = ranks;
    const auto possible = possible_ranks(command, attempt.further ? ranks : std::max(least, ranks - 1), least);
    if (possible > 0) ranks = possible;
    if (ranks < before) put(fitted(fmt::format("ranks     {} in place of {}\n", ranks, before)));
    // Where none are possible, the check says why.
    return run(arguments_to_go_on(command, ranks), possible > 0 ? Check::no : Check::yes);
  });
}

}  // namespace trireme::apps
