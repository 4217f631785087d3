#include "apps/launcher/restarts.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "apps/launcher/run_messages.h"
#include "apps/launcher/worker.h"
#include "apps/report.h"
#include "core/base/error.h"
#include "core/base/text.h"
#include "core/resume/restart.h"

namespace trireme::apps {
namespace {

/// The longest time before a restart, and after which a start was no failure from its beginning.
constexpr std::chrono::seconds kLongest{60};

/// The command's own arguments with other ranks.
std::vector<std::string> arguments_again(const TrainCommand& command, std::int64_t ranks) {
  std::vector<std::string> out{"train", command.config, "--ranks", std::to_string(ranks)};
  for (const auto& set : command.set) out.insert(out.end(), {"--set", set});
  if (command.timeline) out.emplace_back("--timeline");
  return out;
}

/// Tells the next start of the ranks that it is not the first one. `number`: 0 for a retry.
void announce_restart(std::int64_t number, const std::string& cause, const RunEnd& before) {
  setenv(train::kRestartVariable, fmt::format("{} {}", number, cause).c_str(), 1);
  if (!before.report.trains_in.empty()) setenv(train::kTrainedInVariable, before.report.trains_in.c_str(), 1);
}

/// A training that is started as often as its ranks die.
class Training {
 public:
  Training(Supervisor& supervisor, TrainCommand command, std::int64_t threads)
      : supervisor_(supervisor),
        command_(std::move(command)),
        threads_(threads),
        ranks_(command_.ranks.value_or(1)),
        least_(command_.min_ranks.value_or(ranks_)) {}
  RunEnd start(const std::vector<std::string>& arguments);
  RunEnd start_again(bool further);

 private:
  Supervisor& supervisor_;
  TrainCommand command_;
  std::int64_t threads_, ranks_, least_;
  bool retried_ = false;
};

RunEnd Training::start(const std::vector<std::string>& arguments) {
  const auto end = run_ranks(supervisor_, ranks_, threads_, arguments, OnStop::ask);
  const bool may_retry = end.code == static_cast<int>(ExitCode::out_of_memory) && end.report.smaller_micro_batch > 0;
  if (!may_retry || end.stopped || std::exchange(retried_, true)) return end;
  const auto smaller = fmt::format("train.micro_batch={}", end.report.smaller_micro_batch);
  command_.set.push_back(smaller);
  announce_restart(0, "out of memory; " + smaller, end);
  const auto fitting = arguments_again(command_, ranks_);
  if (const auto checked = check(supervisor_, fitting, Show::no); checked.code != 0)
    return checked.stopped ? checked : end;
  put(fitted(fmt::format("retry     with {}, because memory ran out (train.on_oom)\n", smaller)));
  auto again = start(fitting);
  again.report.saved_step = std::max(again.report.saved_step, end.report.saved_step);
  return again;
}

RunEnd Training::start_again(bool further) {
  for (auto fewer = ranks_ - 1; !further && fewer >= least_; --fewer) {
    const auto checked = check(supervisor_, arguments_again(command_, fewer), Show::no);
    if (checked.stopped) return checked;
    if (checked.code != 0) continue;
    put(fitted(fmt::format("ranks     {} in place of {}\n", fewer, ranks_)));
    ranks_ = fewer;
    break;
  }
  return start(arguments_again(command_, ranks_));
}

}  // namespace

int with_restarts(Supervisor& supervisor, std::int64_t most, const std::function<RunEnd(const Attempt&)>& start) {
  using Clock = std::chrono::steady_clock;
  std::int64_t newest = -1;
  std::chrono::seconds pause{0};
  for (Attempt attempt;;) {
    const auto begin = Clock::now();
    const auto end = start(attempt);
    if (end.death.empty() || end.stopped || most == 0) return end.code;
    if (attempt.number == most) {
      say_error(fmt::format("not started again: {} of --max-restarts {} made", text::quantity(most, "restart"), most));
      return end.code;
    }
    attempt = {attempt.number + 1, attempt.number == 0 || end.report.saved_step > newest};
    newest = std::max(newest, end.report.saved_step);
    put(fitted(fmt::format("restart   {} of {}, after: {}\n", attempt.number, most, end.death)));
    std::fflush(stdout);
    announce_restart(attempt.number, end.death, end);
    const bool soon = Clock::now() - begin < kLongest;
    pause = soon ? std::clamp(2 * pause, std::chrono::seconds(1), kLongest) : std::chrono::seconds(0);
    if (const int signal = supervisor.wait(pause); signal != 0) return report_stop(signal);
  }
}

int train_with_restarts(const TrainCommand& command, std::int64_t threads, const std::vector<std::string>& arguments) {
  Supervisor supervisor;
  Training training(supervisor, command, threads);
  return with_restarts(supervisor, command.max_restarts, [&](const Attempt& attempt) {
    return attempt.number == 0 ? training.start(arguments) : training.start_again(attempt.further);
  });
}

}  // namespace trireme::apps
