#include "apps/front/supervisor.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "apps/command_line.h"
#include "apps/front/flight_watch.h"
#include "apps/front/rank_output.h"
#include "apps/report.h"
#include "core/base/environment.h"
#include "core/base/error.h"
#include "core/base/repeated_signal.h"
#include "core/launch/rank_variables.h"

namespace trireme::apps {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds kAfterSignal{15}, kAfterFailure{5}, kAfterReport{2};
/// A rank that loses its peer fails at once. Which of the two ended first is then known only by how they ended.
constexpr std::chrono::milliseconds kSameTime{300};

/// How often a run looks at deadlines and at the ranks' records.
constexpr int kLook = 100;  // milliseconds

/// Whether this signal ends a command of which no rank runs.
bool ends_command(int signal) { return asks_to_stop(signal) || signal == SIGQUIT; }

/// Why the run failed.
struct Cause {
  std::string message;  ///< "": the rank has reported it
  int code = 0;
  bool by_signal = false;
  Clock::time_point when;
};

/// Each rank's program with its variables, which replace what the environment has.
std::vector<Program> programs_of(const StartOptions& options, const StoreSocket& store, const FlightWatch& watch) {
  std::vector<Program> programs;
  for (int rank = 0; rank < options.ranks; ++rank) {
    auto& [words, environment] = programs.emplace_back(options.program);
    std::erase_if(environment, [](const std::string& variable) {  // of an outer run
      return variable.starts_with("TRIREME_STORE_FD=") || variable.starts_with(fmt::format("{}=", kCheckVariable));
    });
    watch.set_variable(environment);
    for (const auto& [name, value] : thread_variables(options.ranks, !host_has_gpu(), environment))
      set_variable(environment, name, value);
    for (const auto& [name, value] : rank_variables(rank, options.ranks, store.port(), "launch", store.descriptor()))
      set_variable(environment, name, value);
  }
  return programs;
}

class Run {
 public:
  Run(EventLoop& loop, const SignalQueue& signals, const StartOptions& options)
      : loop_(loop),
        signals_(signals),
        options_(options),
        watch_(options.ranks, options.kind),
        outputs_{{stdout, options.tag_output}, {stderr, options.tag_output}} {}
  RunEnd until_end();

 private:
  void start();
  [[nodiscard]] RunEnd verdict() const;
  [[nodiscard]] std::string late_text() const;
  void acknowledge();
  void on_signals();
  void on_end(const RankEnd& end);
  [[nodiscard]] bool may_ask(int signal) const;
  void ask_to_stop(int signal);
  [[nodiscard]] bool says_error_after_stop(const RankEnd& end) const;
  void on_end_after_asking(const RankEnd& end);
  void fail(const Cause& cause);
  [[nodiscard]] std::string name_of(int rank) const;

  EventLoop& loop_;
  const SignalQueue& signals_;
  const StartOptions& options_;
  FlightWatch watch_;
  RankOutput outputs_[2];
  std::set<int> complained_;  ///< ranks that wrote to standard error
  std::optional<LocalRanks> ranks_;
  int stop_ = 0;               ///< the signal that has ended the run, or ends it; 0: none
  int last_signal_ = 0;        ///< that was passed on
  int error_after_stop_ = 0;   ///< exit code of a rank of a training that has said why it could not stop as asked
  bool acknowledged_ = false;  ///< the user has been told that the training stops
  bool stopped_ = false;       ///< a signal asked the ranks to stop, or was to end them
  bool asked_ = false;         ///< the ranks were asked to stop, and nothing ended them since
  timespec asked_at_{};
  bool finished_anyway_ = true;  ///< no rank has stopped
  std::optional<Cause> cause_;
};

RunEnd Run::until_end() {
  start();
  const Watch signals(loop_, signals_.descriptor(), [this] { on_signals(); });
  while (ranks_->busy()) {
    loop_.run_once(kLook);
    for (auto& output : outputs_) output.write_waiting();
    if (stop_ == 0) watch_.look();
    if (watch_.overdue() && !ranks_->is_ending()) ranks_->end(SIGTERM, kAfterReport);
    ranks_->check_deadline();
  }
  auto end = watch_.completed(verdict());
  end.stopped = stopped_;
  return end;
}

void Run::start() {
  const StoreSocket store;  // rank 0 gets it
  const auto on_output = [this](int rank, int stream, std::string_view text) {
    if (stream == STDERR_FILENO && !text.empty()) complained_.insert(rank);
    outputs_[stream == STDERR_FILENO ? 1 : 0].add(rank, text);
  };
  ranks_.emplace(loop_, programs_of(options_, store, watch_), store.descriptor(),
                 RankEvents{.output = on_output, .ended = [this](const RankEnd& end) { on_end(end); }});
}

/// "; ..." when ranks had to be killed.
std::string Run::late_text() const {
  const auto waited = ranks_->killed_after();
  if (!waited) return "";
  const bool is_option = options_.kind == Ranks::of_any_program && *waited == options_.grace;
  return fmt::format("; ranks that still ran after {} s{} were killed", waited->count(), is_option ? " (--grace)" : "");
}

/// Says what the ranks have not.
RunEnd Run::verdict() const {
  constexpr int kCommunication = static_cast<int>(ExitCode::communication);
  if (watch_.printed()) return {kCommunication, watch_.headline()};
  if (asked_ && finished_anyway_ && !cause_) return {};  // it was at its end
  if (stop_ != 0 && error_after_stop_ != 0) return {error_after_stop_};
  if (stop_ != 0 && !(asked_ && cause_)) return {report_stop(stop_, late_text() + watch_.unsaved())};
  if (!cause_) return {};
  if (!cause_->message.empty()) say_error(cause_->message);
  const bool died = cause_->by_signal || cause_->code == kCommunication || options_.kind == Ranks::of_any_program;
  const bool is_peer = options_.kind == Ranks::of_trireme && options_.ranks > 1;
  const auto& death = cause_->message.empty() ? kLostRanks : cause_->message;
  return {cause_->by_signal && is_peer ? kCommunication : cause_->code, died ? death : ""};
}

void Run::on_signals() {
  while (const int number = signals_.next()) {
    if (may_ask(number)) {
      ask_to_stop(number);
      continue;
    }
    if (asked_ && asks_to_stop(number) && !is_second_request(asked_at_)) continue;
    switch (number) {
      case SIGCHLD:
        ranks_->collect();
        break;
      case SIGTSTP:  // the ranks are in process groups of their own, which the terminal does not stop
        ranks_->send(number);
        raise(SIGSTOP);
        break;
      case SIGUSR1:
        acknowledge();
        [[fallthrough]];
      case SIGUSR2:
      case SIGCONT:
        last_signal_ = number;
        ranks_->send(number);
        break;
      default:
        if (asks_to_stop(number)) acknowledge();
        asked_ = false;
        stopped_ = true;
        if (stop_ == 0 && !cause_) stop_ = number;
        ranks_->end(number, options_.grace);
    }
  }
}

bool Run::may_ask(int signal) const {
  return options_.on_stop == OnStop::ask && stop_ == 0 && !cause_ && asks_to_stop(signal);
}

void Run::ask_to_stop(int signal) {
  clock_gettime(CLOCK_MONOTONIC, &asked_at_);
  stop_ = signal;
  asked_ = stopped_ = true;
  acknowledge();
  ranks_->send(SIGUSR1);
}

/// Tells the user, once, that a training stops.
void Run::acknowledge() {
  if (watch_.takes_signals() && !std::exchange(acknowledged_, true)) say_stopping();
}

std::string Run::name_of(int rank) const {
  if (options_.kind == Ranks::of_trireme && options_.ranks == 1) return "the training";
  return fmt::format("rank {}", rank);
}

/// A rank that was asked to stop has ended.
void Run::on_end_after_asking(const RankEnd& end) {
  finished_anyway_ = false;
  if (end.code() == 128 + SIGUSR1 && end.signal() == 0) return;             // it has saved
  if (end.signal() == SIGUSR1) return ranks_->end(SIGTERM, kAfterFailure);  // it had not begun to train
  stop_ = 0;
  on_end(end);
}

/// Whether a rank of a training says why it could not stop as asked. A lost peer is only a consequence.
bool Run::says_error_after_stop(const RankEnd& end) const {
  return stop_ != 0 && watch_.is_training() && end.code() <= static_cast<int>(ExitCode::checkpoint) &&
         end.code() != static_cast<int>(ExitCode::communication);
}

void Run::on_end(const RankEnd& end) {
  if (end.status == 0) return;
  if (asked_ && stop_ != 0) return on_end_after_asking(end);
  if (watch_.stopped_as_asked() && end.signal() == 0 && !cause_ && stop_ == 0 && asks_to_stop(end.code() - 128)) {
    stop_ = end.code() - 128;  // a signal to one of the ranks; the others stop too
    ranks_->expect_end(options_.grace);
    return;
  }
  if (last_signal_ != 0 && end.code() == 128 + last_signal_ && !cause_ && stop_ == 0) {
    stop_ = last_signal_;  // a signal to this process that ends the program, or on which it ends itself
    return ranks_->end(SIGTERM, kAfterFailure);
  }
  if (says_error_after_stop(end)) {
    if (error_after_stop_ == 0) ranks_->end(SIGTERM, kAfterFailure);
    error_after_stop_ = error_after_stop_ != 0 ? error_after_stop_ : end.code();
    return;
  }
  const auto name = name_of(end.rank);
  if (end.signal() != 0 && !cause_ && stop_ == 0) watch_.rank_died(end.rank, end.signal());
  const bool silent = complained_.count(end.rank) == 0;
  std::string message;
  if (end.signal() != 0)
    message = ended_by_signal(name, end.signal(), options_.kind, options_.ranks);
  else if (options_.kind == Ranks::of_any_program || silent)
    message = fmt::format("{} ended with exit code {}{}", name, end.code(), silent ? " and no message" : "");
  fail({message, end.code(), end.signal() != 0, Clock::now()});
}

void Run::fail(const Cause& cause) {
  if (stop_ != 0) return;
  const bool sent = cause.code == 128 + SIGTERM || (ranks_->killed_after() && cause.code == 128 + SIGKILL);
  const bool of_peer =
      cause_ && cause_->code == static_cast<int>(ExitCode::communication) && cause.code != cause_->code;
  const bool is_earlier =
      cause_ && !cause_->by_signal && (cause.by_signal || of_peer) && !sent && cause.when - cause_->when < kSameTime;
  if (!cause_ || is_earlier) cause_ = cause;
  if (ranks_->is_ending()) return;
  watch_.note_dying();
  ranks_->end(SIGTERM, watch_.printed() ? kAfterReport : kAfterFailure);
}

}  // namespace

RunEnd Supervisor::run(const StartOptions& options) {
  if (wait({}) != 0) return {.code = report_stop(stop_), .stopped = true};
  return Run(loop_, signals_, options).until_end();
}

RunEnd Supervisor::check(const Program& program, Report report) {
  if (wait({}) != 0) return {.code = report_stop(stop_), .stopped = true};
  RankEnd ended;
  const auto on_output = [report](int, int stream, std::string_view text) {
    std::FILE* to = stream == STDERR_FILENO ? stderr : stdout;
    if (report == Report::no || text.empty()) return;
    std::fwrite(text.data(), 1, text.size(), to);  // output_error() reports a failure
    std::fflush(to);
  };
  LocalRanks process(loop_, {program}, -1, {.output = on_output, .ended = [&](const RankEnd& end) { ended = end; }});
  const Watch signals(loop_, signals_.descriptor(), [&] {
    while (const int number = signals_.next()) {
      if (number == SIGCHLD) process.collect();
      if (ends_command(number)) process.end(stop_ = number, kAfterSignal);
      if (number == SIGTSTP || number == SIGCONT) process.send(number);
      if (number == SIGTSTP) raise(SIGSTOP);
    }
  });
  while (process.busy()) {
    loop_.run_once(kLook);
    process.check_deadline();
  }
  if (stop_ != 0) return {.code = report_stop(stop_), .stopped = true};
  return {.code = ended.signal() != 0 ? 0 : ended.code()};
}

int Supervisor::wait(std::chrono::milliseconds time) {
  const Watch signals(loop_, signals_.descriptor(), [this] {
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
