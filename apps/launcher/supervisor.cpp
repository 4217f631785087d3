#include "apps/launcher/supervisor.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "apps/command_line.h"
#include "apps/launcher/rank_output.h"
#include "apps/launcher/rank_records.h"
#include "apps/report.h"
#include "core/base/environment.h"
#include "core/base/error.h"
#include "core/base/repeated_signal.h"
#include "core/launch/rank_variables.h"

namespace trireme::apps {
namespace {

using Clock = std::chrono::steady_clock;
using ranks::Cause;
using ranks::LocalRanks;
using ranks::RankState;
constexpr std::chrono::seconds kAfterSignal{15}, kAfterFailure{5}, kAfterTable{2}, kAtOnce{2};
/// That ranks have to end after the table, once they have said themselves that they do.
constexpr std::chrono::seconds kToEnd{10};
constexpr std::chrono::seconds kForReader{1};
/// How many bytes wait for a reader, before the ranks wait too, and before they are dropped because the ranks must end.
constexpr std::size_t kMostUnwritten = 1 << 18, kMostKept = 1 << 22;

/// How often a run looks at deadlines.
constexpr int kLook = 100, kLookWhileFailing = 20;  // milliseconds

/// Whether this signal ends a command of which no rank runs.
bool ends_command(int signal) { return asks_to_stop(signal) || signal == SIGQUIT; }

/// Each rank's program with its variables, which replace what the environment has.
std::vector<ranks::Program> programs_of(const StartOptions& options, const StoreSocket& store,
                                        const RankRecords& records) {
  std::vector<ranks::Program> programs;
  for (int rank = 0; rank < options.ranks; ++rank) {
    auto& environment = programs.emplace_back(options.program).environment;
    std::erase_if(environment, [](const std::string& variable) {  // of an outer run
      return variable.starts_with("TRIREME_STORE_FD=") || variable.starts_with(fmt::format("{}=", kCheckVariable));
    });
    records.set_variable(environment);
    for (const auto& [name, value] : thread_variables(options.ranks, !host_has_gpu(), environment))
      set_variable(environment, name, value);
    for (const auto& [name, value] : rank_variables(rank, options.ranks, store.port(), "launch", store.descriptor()))
      set_variable(environment, name, value);
  }
  return programs;
}

class Run {
 public:
  Run(ranks::EventLoop& loop, const ranks::SignalQueue& signals, const StartOptions& options)
      : loop_(loop),
        signals_(signals),
        options_(options),
        records_(options.ranks, options.kind),
        outputs_{{loop, stdout, options.tag_output}, {loop, stderr, options.tag_output}} {}
  RunEnd until_end();

 private:
  void start();
  [[nodiscard]] std::size_t unwritten() const;
  void wait_for_reader();
  [[nodiscard]] RunEnd how_it_ended() const;
  [[nodiscard]] ranks::RankReport reported() const;
  [[nodiscard]] std::string late_text() const;
  [[nodiscard]] std::string unsaved_text() const;
  void acknowledge();
  void on_signals();
  void on_end(const RankState& rank);
  [[nodiscard]] bool may_ask(int signal) const;
  void request_stop(int signal);
  void tell_of_shells();
  void tell(const RankState& rank);
  void look_for_cause();
  void say_cause(const Cause& cause);
  [[nodiscard]] std::string text_of(const Cause& cause) const;

  ranks::EventLoop& loop_;
  const ranks::SignalQueue& signals_;
  const StartOptions& options_;
  RankRecords records_;
  RankOutput outputs_[2];
  std::set<int> complained_;  ///< ranks that wrote to standard error
  std::optional<LocalRanks> ranks_;
  int stop_ = 0;               ///< the signal that has ended the run, or ends it; 0: none
  int last_signal_ = 0;        ///< that was passed on
  bool acknowledged_ = false;  ///< the user has been told that the training stops
  bool stopped_ = false;       ///< a signal asked the ranks to stop, or was to end them
  bool asked_ = false;         ///< the ranks were asked to stop, and nothing ended them since
  timespec asked_at_{};
  bool finished_anyway_ = true;                         ///< no rank has failed or stopped
  std::map<int, Clock::time_point> below_shell_since_;  ///< an error of a process that the rank has started
  std::set<int> told_;                                  ///< ranks whose error is said, though they go on
  std::optional<Clock::time_point> failing_since_;
  std::optional<Cause> cause_;  ///< of the failure, once it is said
  std::string said_;            ///< about it, in a line
  Clock::time_point said_at_;
  bool table_ = false;  ///< with the table of what the ranks were doing
};

RunEnd Run::until_end() {
  start();
  const ranks::Watch signals(loop_, signals_.descriptor(), [this] { on_signals(); });
  while (ranks_->busy()) {
    loop_.run_once(failing_since_ && !cause_ ? kLookWhileFailing : kLook);
    for (auto& output : outputs_) output.write_waiting();
    // A rank that waits to write would not end.
    ranks_->read_outputs(stopped_ || ranks_->is_ending() || unwritten() < kMostUnwritten);
    look_for_cause();
    ranks_->check_deadline();
  }
  look_for_cause();
  wait_for_reader();
  auto end = how_it_ended();
  const auto all = reported();
  end.saved_step = all.saved_step;
  end.smaller_micro_batch = all.smaller_micro_batch;
  end.trained_in = all.trains_in;
  end.stopped = stopped_;
  return end;
}

std::size_t Run::unwritten() const { return outputs_[0].unwritten() + outputs_[1].unwritten(); }

/// Until all is read; after a signal not for one who reads nothing.
void Run::wait_for_reader() {
  auto last_read = Clock::now();
  for (auto left = unwritten(); left > 0; left = unwritten()) {
    loop_.run_once(kLook);
    if (unwritten() < left) last_read = Clock::now();
    if (stopped_ && Clock::now() - last_read > kForReader) return;
  }
}

void Run::start() {
  const StoreSocket store;  // rank 0 gets it
  const auto on_output = [this](int rank, int stream, std::string_view text) {
    if (stream == STDERR_FILENO && !text.empty()) complained_.insert(rank);
    if (unwritten() < kMostKept || text.empty()) outputs_[stream == STDERR_FILENO ? 1 : 0].add(rank, text);
  };
  ranks_.emplace(loop_, programs_of(options_, store, records_),
                 ranks::RankSettings{.store_socket = store.descriptor(), .blocked = signals_.blocked_before()},
                 ranks::RankEvents{.output = on_output, .ended = [this](const RankState& rank) { on_end(rank); }});
}

ranks::RankReport Run::reported() const {
  ranks::RankReport all;
  for (const auto& state : ranks_->states()) ranks::merge(all, state.report);
  return all;
}

/// "; ..." when ranks had to be killed.
std::string Run::late_text() const {
  const auto waited = ranks_->killed_after();
  if (!waited) return "";
  const bool is_option = options_.kind == ranks::Ranks::of_any_program && *waited == options_.grace;
  return fmt::format("; ranks that still ran after {} s{} were killed", waited->count(), is_option ? " (--grace)" : "");
}

/// "; ..." what a training has not saved that a signal ended before it could; "" when it had stopped as asked, and for
/// other programs.
std::string Run::unsaved_text() const {
  const auto all = reported();
  if (all.training != ranks::RankReport::Training::takes_signals || all.stopped) return "";
  std::string text;
  if (all.late_after > 0) text = fmt::format("; it could not save within run.stop_grace_s = {}", all.late_after);
  return all.unsaved.empty() ? text : text + "; " + all.unsaved;
}

RunEnd Run::how_it_ended() const {
  constexpr int kCommunication = static_cast<int>(ExitCode::communication);
  if (table_) return {kCommunication, said_};
  if (cause_) {
    const bool died = cause_->end == ranks::End::killed || cause_->code == kCommunication ||
                      options_.kind == ranks::Ranks::of_any_program;
    const bool is_peer = options_.kind == ranks::Ranks::of_trireme && options_.ranks > 1;
    return {cause_->end == ranks::End::killed && is_peer ? kCommunication : cause_->code, died ? said_ : ""};
  }
  if (asked_ && finished_anyway_) return {};  // it was at its end
  if (stop_ != 0) return {report_stop(stop_, late_text() + unsaved_text())};
  return {};
}

void Run::on_signals() {
  while (const int number = signals_.next()) {
    ranks_->collect();  // what the signal means depends on what the ranks have reported
    if (may_ask(number)) {
      request_stop(number);
      continue;
    }
    if (asked_ && asks_to_stop(number) && !is_second_request(asked_at_)) continue;
    switch (number) {
      case SIGCHLD:
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
        stopped_ = true;
        if (stop_ == 0 && !cause_) stop_ = number;
        // A second request ends each rank at once, unless that is stopped.
        ranks_->end(number, std::exchange(asked_, false) ? kAtOnce : options_.grace);
    }
  }
}

bool Run::may_ask(int signal) const {
  return options_.on_stop == OnStop::ask && stop_ == 0 && !cause_ && asks_to_stop(signal);
}

void Run::request_stop(int signal) {
  clock_gettime(CLOCK_MONOTONIC, &asked_at_);
  stop_ = signal;
  asked_ = stopped_ = true;
  acknowledge();
  ranks_->send(SIGUSR1);
}

/// Tells the user, once, that a training stops.
void Run::acknowledge() {
  if (reported().training == ranks::RankReport::Training::takes_signals && !std::exchange(acknowledged_, true))
    outputs_[1].say(stopping_line());
}

/// Finds out whether a rank has ended because of a signal. look_for_cause() does the rest.
void Run::on_end(const RankState& rank) {
  const auto& failure = rank.report.failure;
  if (rank.code() == 0 && failure && !cause_) tell(rank);
  if (rank.code() == 0) return;
  finished_anyway_ = false;
  if (asked_ && stop_ != 0) {
    if (rank.code() == 128 + SIGUSR1 && rank.signal() == 0) return;  // it has saved
    if (rank.signal() == SIGUSR1) {                                  // it had not begun to train
      asked_ = false;
      return ranks_->end(SIGTERM, kAfterFailure);
    }
    stop_ = 0;
  }
  if (cause_ || stop_ != 0 || failure) return;
  if (rank.signal() == 0 && asks_to_stop(rank.code() - 128) && reported().stopped) {
    stop_ = rank.code() - 128;  // a signal to one of the ranks; the others stop too
    ranks_->expect_end(options_.grace);
  } else if (last_signal_ != 0 && rank.code() == 128 + last_signal_) {
    stop_ = last_signal_;  // a signal to this process that ends the program, or on which it ends itself
    ranks_->end(SIGTERM, kAfterFailure);
  }
}

/// Says the error of a rank that has dealt with it.
void Run::tell(const RankState& rank) {
  const auto& failure = *rank.report.failure;
  if (told_.insert(rank.rank).second)
    outputs_[1].say(error_line(ranks::message_of(rank.rank, failure), failure.program));
}

/// Says the errors of programs after which a rank's shell goes on.
void Run::tell_of_shells() {
  for (const auto& state : ranks_->states()) {
    const auto& failure = state.report.failure;
    if (!failure || failure->process == state.process || state.ended() || cause_) continue;
    const auto since = below_shell_since_.emplace(state.rank, Clock::now()).first->second;
    if (Clock::now() - since >= ranks::kSettleTime) tell(state);
  }
}

/// Says why the run fails when it is known, and ends the ranks once one of them has ended.
void Run::look_for_cause() {
  ranks_->collect();
  tell_of_shells();
  const auto& states = ranks_->states();
  if (!cause_) {
    auto cause = stop_ == 0 ? ranks::cause_of(states) : ranks::reported_cause_of(states);
    // A training may say why it could not stop as asked. All else is a consequence of the signal.
    if (stop_ != 0 && reported().training == ranks::RankReport::Training::none) cause.reset();
    if (!cause) return failing_since_.reset();
    if (!failing_since_) {
      failing_since_ = Clock::now();
      return look_for_cause();  // what explains it has happened before, and is known now
    }
    const bool settled = cause->is_clear || !ranks_->busy() ||
                         std::all_of(states.begin(), states.end(), ranks::is_settled) ||
                         Clock::now() - *failing_since_ >= ranks::kSettleTime;
    if (!settled) return;
    say_cause(*cause);
  }
  const bool any_ended =
      std::any_of(states.begin(), states.end(), [](const RankState& rank) { return rank.code() != 0; });
  const bool overdue = table_ && Clock::now() - said_at_ > kToEnd;
  if ((any_ended || overdue) && !ranks_->is_ending()) ranks_->end(SIGTERM, table_ ? kAfterTable : kAfterFailure);
}

void Run::say_cause(const Cause& cause) {
  cause_ = cause;
  said_at_ = Clock::now();
  ranks_->read_outputs_now();  // what the rank has printed comes first
  std::string table;
  if (cause.end == ranks::End::killed || cause.end == ranks::End::lost_peer)
    table = records_.table(cause, ranks_->states());
  table_ = !table.empty();
  if (table_) {
    const auto line = table.find('\n');
    said_ = table.substr(0, line);
    return outputs_[1].say(error_line(said_) + table.substr(line + 1));
  }
  said_ = text_of(cause);
  const auto& failure = ranks_->states()[static_cast<std::size_t>(cause.rank)].report.failure;
  const bool has_complained = cause.end == ranks::End::exited && complained_.count(cause.rank) != 0;
  if (has_complained && options_.kind == ranks::Ranks::of_trireme) return;  // such as OpenMP's library
  outputs_[1].say(error_line(said_, failure ? failure->program : "trireme"));
}

std::string Run::text_of(const Cause& cause) const {
  const auto& state = ranks_->states()[static_cast<std::size_t>(cause.rank)];
  if (state.report.failure && told_.count(cause.rank) == 0) return ranks::message_of(cause.rank, *state.report.failure);
  const bool is_alone = options_.kind == ranks::Ranks::of_trireme && options_.ranks == 1;
  const auto name = is_alone ? "the training" : fmt::format("rank {}", cause.rank);
  if (state.signal() != 0) return ranks::ended_by_signal(name, state.signal(), options_.kind, options_.ranks);
  const bool silent = complained_.count(cause.rank) + told_.count(cause.rank) == 0;
  return fmt::format("{} ended with exit code {}{}", name, state.code(), silent ? " and no message" : "");
}

}  // namespace

RunEnd Supervisor::run(const StartOptions& options) {
  if (wait({}) != 0) return {.code = report_stop(stop_), .stopped = true};
  return Run(loop_, signals_, options).until_end();
}

RunEnd Supervisor::check(const ranks::Program& program, Show output) {
  if (wait({}) != 0) return {.code = report_stop(stop_), .stopped = true};
  const auto on_output = [output](int, int stream, std::string_view text) {
    std::FILE* to = stream == STDERR_FILENO ? stderr : stdout;
    if (output == Show::no || text.empty()) return;
    std::fwrite(text.data(), 1, text.size(), to);  // output_error() reports a failure
    std::fflush(to);
  };
  LocalRanks process(loop_, {program}, {.blocked = signals_.blocked_before()}, {.output = on_output});
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
