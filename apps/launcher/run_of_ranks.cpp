#include "apps/launcher/run_of_ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <ctime>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "apps/command_line.h"
#include "apps/launcher/run_messages.h"
#include "core/base/environment.h"
#include "core/base/error.h"
#include "core/base/repeated_signal.h"
#include "core/comm/flight/record.h"
#include "core/launch/rank_variables.h"

namespace trireme::apps {
namespace {

using Clock = std::chrono::steady_clock;
using ranks::Cause;
using ranks::LocalRanks;
using ranks::RankState;
constexpr std::chrono::seconds kAfterFailure{5}, kAfterTable{2}, kAtOnce{2}, kReaderPatience{1};
/// That ranks have to end after the table, once they have said themselves that they do.
constexpr std::chrono::seconds kToEnd{10};
/// How many bytes wait for a reader, before the ranks wait too.
constexpr std::size_t kMostUnwritten = 1 << 18;
/// How often a run looks at deadlines while it fails.
constexpr int kLookWhileFailing = 20;  // milliseconds

/// Each rank's program with its variables, which replace what the environment has.
std::vector<ranks::Program> programs_of(const StartOptions& options, const StoreSocket& store,
                                        const std::string& flight_folder) {
  std::vector<ranks::Program> programs;
  for (int rank = 0; rank < options.ranks; ++rank) {
    auto& environment = programs.emplace_back(options.program).environment;
    std::erase_if(environment, [](const std::string& variable) {  // of an outer run
      return variable.starts_with("TRIREME_STORE_FD=") || variable.starts_with(fmt::format("{}=", kCheckVariable));
    });
    // Without a folder the variable is empty, because that of an outer run must not be used.
    set_variable(environment, comm::flight::kFolderVariable, flight_folder);
    set_thread_variables(environment, options.ranks, !host_has_gpu());
    for (const auto& [name, value] : rank_variables(rank, options.ranks, store.port(), "launch", store.descriptor()))
      set_variable(environment, name, value);
  }
  return programs;
}

class Run {
 public:
  Run(ranks::EventLoop& loop, const ranks::SignalQueue& signals, const StartOptions& options)
      : loop_(loop), signals_(signals), options_(options), messages_(loop, options) {}
  RunEnd until_end();

 private:
  void start();
  void wait_for_reader();
  [[nodiscard]] RunEnd how_it_ended() const;
  [[nodiscard]] ranks::RankReport reported() const;
  [[nodiscard]] std::string late_text() const;
  [[nodiscard]] std::string unsaved_text() const;
  void acknowledge();
  void on_signals();
  void on_end(const RankState& rank);
  void look_for_cause();

  ranks::EventLoop& loop_;
  const ranks::SignalQueue& signals_;
  const StartOptions& options_;
  RunMessages messages_;
  std::optional<LocalRanks> ranks_;
  int stop_ = 0;          ///< the signal that has ended the run, or ends it; 0: none
  int last_signal_ = 0;   ///< that was passed on
  bool stopped_ = false;  ///< a signal asked the ranks to stop, or was to end them
  bool asked_ = false;    ///< the ranks were asked to stop, and nothing ended them since
  timespec asked_at_{};
  bool finished_anyway_ = true;  ///< no rank has failed or stopped
  std::optional<Clock::time_point> failing_since_;
  std::optional<Cause> cause_;  ///< of the failure, once it is said
  CauseMessage said_;           ///< about it
  Clock::time_point said_at_;
};

RunEnd Run::until_end() {
  start();
  const ranks::Watch signals(loop_, signals_.descriptor(), [this] { on_signals(); });
  while (ranks_->busy()) {
    loop_.run_once(failing_since_ && !cause_ ? kLookWhileFailing : kLook);
    messages_.write_waiting();
    // A rank that waits to write would not end.
    ranks_->read_outputs(stopped_ || ranks_->is_ending() || messages_.unwritten() < kMostUnwritten);
    look_for_cause();
    ranks_->check_deadline();
  }
  look_for_cause();
  wait_for_reader();
  auto end = how_it_ended();
  end.report = reported();
  end.stopped = stopped_;
  return end;
}

/// Until all is read; after a signal not for one who reads nothing.
void Run::wait_for_reader() {
  auto last_read = Clock::now();
  for (auto left = messages_.unwritten(); left > 0; left = messages_.unwritten()) {
    loop_.run_once(kLook);
    if (messages_.unwritten() < left) last_read = Clock::now();
    if (stopped_ && Clock::now() - last_read > kReaderPatience) return;
  }
}

void Run::start() {
  const StoreSocket store;  // rank 0 gets it
  const auto on_output = std::bind_front(&RunMessages::add_output, &messages_);
  ranks_.emplace(loop_, programs_of(options_, store, messages_.flight_folder()),
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
  if (said_.has_table) return {kCommunication, said_.line};
  if (cause_) {
    const bool died = cause_->end == ranks::End::killed || cause_->code == kCommunication ||
                      options_.kind == ranks::Ranks::of_any_program;
    const bool is_peer = options_.kind == ranks::Ranks::of_trireme && options_.ranks > 1;
    return {cause_->end == ranks::End::killed && is_peer ? kCommunication : cause_->code, died ? said_.line : ""};
  }
  if (asked_ && finished_anyway_) return {};  // it was at its end
  if (stop_ != 0) return {report_stop(stop_, late_text() + unsaved_text())};
  return {};
}

void Run::on_signals() {
  while (const int number = signals_.next()) {
    ranks_->collect();  // what the signal means depends on what the ranks have reported
    if (options_.on_stop == OnStop::ask && stop_ == 0 && !cause_ && asks_to_stop(number)) {
      clock_gettime(CLOCK_MONOTONIC, &asked_at_);
      stop_ = number;
      asked_ = stopped_ = true;
      acknowledge();
      ranks_->send(SIGUSR1);
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

/// Tells the user, once, that a training stops.
void Run::acknowledge() {
  if (reported().training == ranks::RankReport::Training::takes_signals) messages_.say_stopping();
}

/// Finds out whether a rank has ended because of a signal. look_for_cause() does the rest.
void Run::on_end(const RankState& rank) {
  const auto& failure = rank.report.failure;
  if (rank.code() == 0 && failure && !cause_) messages_.say_error_of(rank);
  if (rank.code() == 0) return;
  finished_anyway_ = false;
  if (asked_ && stop_ != 0) {
    if (rank.code() == 128 + SIGUSR1 && rank.signal() == 0) {             // it has saved, or was too late
      if (rank.report.late_after > 0) ranks_->expect_end(kAfterFailure);  // others may be stopped
      return;
    }
    if (ranks_->is_ending()) return;  // killed, because it was stopped when its time was over
    if (rank.signal() == SIGUSR1) {   // it had not begun to train
      asked_ = false;
      return ranks_->end(SIGTERM, kAfterFailure);
    }
    stop_ = 0;
  }
  if (cause_ || stop_ != 0 || failure) return;
  // It was signalled itself, and could not save in time, or was asked twice.
  const bool stopped_alone =
      !rank.report.stopped &&
      (rank.report.late_after > 0 || rank.report.training == ranks::RankReport::Training::takes_signals);
  if (rank.signal() == 0 && asks_to_stop(rank.code() - 128) && (reported().stopped || stopped_alone)) {
    stop_ = rank.code() - 128;  // a signal to one of the ranks; the others stop too
    if (stopped_alone)
      ranks_->end(SIGTERM, kAtOnce);
    else
      ranks_->expect_end(options_.grace);
  } else if (last_signal_ != 0 && rank.code() == 128 + last_signal_) {
    stop_ = last_signal_;  // a signal to this process that ends the program, or on which it ends itself
    ranks_->end(SIGTERM, kAfterFailure);
  }
}

/// Says why the run fails when it is known, and ends the ranks once one of them has ended.
void Run::look_for_cause() {
  ranks_->collect();
  const auto& states = ranks_->states();
  if (!cause_) {
    messages_.say_errors_of_shells(states);
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
    cause_ = cause;
    said_at_ = Clock::now();
    ranks_->read_outputs_now();  // what the rank has printed comes first
    said_ = messages_.say_cause(*cause_, states);
  }
  const bool any_ended =
      std::any_of(states.begin(), states.end(), [](const RankState& rank) { return rank.code() != 0; });
  const bool overdue = said_.has_table && Clock::now() - said_at_ > kToEnd;
  if ((any_ended || overdue) && !ranks_->is_ending())
    ranks_->end(SIGTERM, said_.has_table ? kAfterTable : kAfterFailure);
}

}  // namespace

bool asks_to_stop(int signal) { return signal == SIGINT || signal == SIGTERM || signal == SIGHUP || signal == SIGUSR1; }

RunEnd run_until_end(ranks::EventLoop& loop, const ranks::SignalQueue& signals, const StartOptions& options) {
  return Run(loop, signals, options).until_end();
}

}  // namespace trireme::apps
