#include "apps/launcher/supervisor.h"

#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <string_view>

#include "apps/launcher/run_messages.h"
#include "apps/report.h"
#include "core/launch/local_ranks.h"

namespace trireme::apps {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds kAfterSignal{15};

/// Whether this signal ends a command of which no rank runs.
bool ends_command(int signal) { return asks_to_stop(signal) || signal == SIGQUIT; }

}  // namespace

RunEnd Supervisor::run(const StartOptions& options) {
  if (wait({}) != 0) return {.code = report_stop(stop_), .stopped = true};
  return run_until_end(loop_, signals_, options);
}

RunEnd Supervisor::check(const ranks::Program& program, Show output) {
  if (wait({}) != 0) return {.code = report_stop(stop_), .stopped = true};
  const auto on_output = [output](int, int stream, std::string_view text) {
    std::FILE* to = stream == STDERR_FILENO ? stderr : stdout;
    if (output == Show::no || text.empty()) return;
    std::fwrite(text.data(), 1, text.size(), to);  // output_error() reports a failure
    std::fflush(to);
  };
  ranks::LocalRanks process(loop_, {program}, {.blocked = signals_.blocked_before()}, {.output = on_output});
  const ranks::Watch signals(loop_, signals_.descriptor(), [&] {
    while (const int number = signals_.next()) {
      if (ends_command(number)) process.end(stop_ = number, kAfterSignal);
      if (number == SIGTSTP || number == SIGCONT) process.send(number);
      if (number == SIGTSTP) raise(SIGSTOP);
    }
  });
  while (process.busy()) {
    loop_.run_once(kLook);
    process.collect();
    process.check_deadline();
  }
  if (stop_ != 0) return {.code = report_stop(stop_), .stopped = true};
  const auto& ended = process.states().front();
  if (const auto& failure = ended.report.failure; failure && output == Show::yes) say_error(failure->message);
  return {.code = ended.signal() != 0 ? 0 : ended.code()};
}

int Supervisor::wait(std::chrono::milliseconds time) {
  const ranks::Watch signals(loop_, signals_.descriptor(), [this] {
    while (const int number = signals_.next()) {
      if (ends_command(number)) stop_ = number;
      if (number == SIGTSTP) raise(SIGSTOP);
    }
  });
  const auto until = Clock::now() + time;
  do {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now());
    loop_.run_once(static_cast<int>(std::max<std::int64_t>(0, left.count())));
  } while (stop_ == 0 && Clock::now() < until);
  return stop_;
}

}  // namespace trireme::apps
