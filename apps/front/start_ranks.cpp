#include "apps/front/start_ranks.h"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "apps/front/all_ranks.h"
#include "apps/front/child.h"
#include "apps/front/event_loop.h"
#include "apps/front/flight_watch.h"
#include "apps/front/rank_output.h"
#include "apps/report.h"
#include "core/base/error.h"
#include "core/base/repeated_signal.h"

namespace trireme::apps {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds kAfterFailure{5}, kAfterReport{2};
/// A rank that loses its peer fails at once. Which of the two ended first is then known only by how they ended.
constexpr std::chrono::milliseconds kSameTime{300};

/// Why the run failed.
struct Cause {
  std::string message;  ///< "": the rank has reported it
  int code = 0;
  bool by_signal = false;
  Clock::time_point when;
};

class Run {
 public:
  explicit Run(const StartOptions& options)
      : options_(options),
        watch_(ranks_of(options), options.hosts.size() == 1 && options.hosts[0].here, options.ranks),
        outputs_{{stdout, options.tag_output}, {stderr, options.tag_output}},
        ranks_(loop_, options, watch_, events(), [this](const HostFailure& failure) {
          fail({failure.message, failure.code, true, Clock::now()});
        }) {}
  RunEnd until_end();

 private:
  void run();
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
  [[nodiscard]] RankEvents events();

  const StartOptions& options_;
  FlightWatch watch_;
  EventLoop loop_;
  SignalQueue signals_;
  RankOutput outputs_[2];
  std::set<int> complained_;  ///< ranks that wrote to standard error
  AllRanks ranks_;
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
  run();
  auto end = watch_.completed(verdict());
  end.stopped = stopped_;
  return end;
}

void Run::run() {
  loop_.watch(signals_.descriptor(), [this] { on_signals(); });
  stop_ = ending_signal();  // since the check of the command
  stopped_ = stop_ != 0;
  if (stopped_) return;
  ranks_.start();
  while (ranks_.busy()) {
    (void)loop_.run_once(100);
    for (auto& output : outputs_) output.write_waiting();
    if (stop_ == 0) watch_.look();
    if (watch_.overdue() && !ranks_.is_ending()) ranks_.end(SIGTERM, kAfterReport);
    ranks_.check_deadline();
  }
}

/// "; ..." when ranks had to be killed.
std::string Run::late_text() const {
  if (!ranks_.killed()) return "";
  const bool is_option = options_.ranks == Ranks::of_any_program;
  return fmt::format("; ranks that still ran after {} s{} were killed", options_.grace.count(),
                     is_option ? " (--grace)" : "");
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
  const bool died = cause_->by_signal || cause_->code == kCommunication || options_.ranks == Ranks::of_any_program;
  const bool is_peer = options_.ranks == Ranks::of_trireme && ranks_of(options_) > 1;
  const auto& death = cause_->message.empty() ? kLostRanks : cause_->message;
  return {cause_->by_signal && is_peer ? kCommunication : cause_->code, died ? death : ""};
}

RankEvents Run::events() {
  return {.output =
              [this](int rank, int stream, std::string_view text) {
                if (stream == STDERR_FILENO && !text.empty()) complained_.insert(rank);
                outputs_[stream == STDERR_FILENO ? 1 : 0].add(rank, text);
              },
          .ended = [this](const RankEnd& end) { on_end(end); }};
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
        ranks_.collect();
        break;
      case SIGTSTP:  // the ranks are in process groups of their own, which the terminal does not stop
        ranks_.send(number);
        raise(SIGSTOP);
        break;
      case SIGUSR1:
        acknowledge();
        [[fallthrough]];
      case SIGUSR2:
      case SIGCONT:
        last_signal_ = number;
        ranks_.send(number);
        break;
      default:
        if (asks_to_stop(number)) acknowledge();
        asked_ = false;
        stopped_ = true;
        if (stop_ == 0 && !cause_) stop_ = number;
        ranks_.end(number, options_.grace);
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
  ranks_.send(SIGUSR1);
}

/// Tells the user, once, that a training stops. Of ranks on other hosts, one there says it.
void Run::acknowledge() {
  if (!options_.hosts[0].here || !watch_.takes_signals() || std::exchange(acknowledged_, true)) return;
  say_stopping();
}

std::string Run::name_of(int rank) const {
  if (options_.ranks == Ranks::of_trireme) return fmt::format("rank {}", rank);
  auto host = options_.hosts.begin();
  while (rank >= host->first + host->count) ++host;
  return fmt::format("rank {} on host {}", rank, host->name);
}

/// A rank that was asked to stop has ended.
void Run::on_end_after_asking(const RankEnd& end) {
  finished_anyway_ = false;
  if (end.code() == 128 + SIGUSR1 && end.signal() == 0) return;            // it has saved
  if (end.signal() == SIGUSR1) return ranks_.end(SIGTERM, kAfterFailure);  // it had not begun to train
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
    ranks_.expect_end(options_.grace);
    return;
  }
  if (last_signal_ != 0 && end.code() == 128 + last_signal_ && !cause_ && stop_ == 0) {
    stop_ = last_signal_;  // a signal to this process that ends the program, or on which it ends itself
    return ranks_.end(SIGTERM, kAfterFailure);
  }
  if (says_error_after_stop(end)) {
    if (error_after_stop_ == 0) ranks_.end(SIGTERM, kAfterFailure);
    error_after_stop_ = error_after_stop_ != 0 ? error_after_stop_ : end.code();
    return;
  }
  const auto name = name_of(end.rank);
  if (end.signal() != 0 && !cause_ && stop_ == 0) watch_.rank_died(end.rank, name, end.signal());
  const bool silent = complained_.count(end.rank) == 0;
  std::string message;
  if (end.signal() != 0)
    message = ended_by_signal(name, end.signal(), options_.ranks, ranks_of(options_));
  else if (options_.ranks == Ranks::of_any_program || silent)
    message = fmt::format("{} ended with exit code {}{}", name, end.code(), silent ? " and no message" : "");
  fail({message, end.code(), end.signal() != 0, Clock::now()});
}

void Run::fail(const Cause& cause) {
  if (stop_ != 0) return;
  const bool sent = cause.code == 128 + SIGTERM || (ranks_.killed() && cause.code == 128 + SIGKILL);
  const bool of_peer =
      cause_ && cause_->code == static_cast<int>(ExitCode::communication) && cause.code != cause_->code;
  const bool is_earlier =
      cause_ && !cause_->by_signal && (cause.by_signal || of_peer) && !sent && cause.when - cause_->when < kSameTime;
  if (!cause_ || is_earlier) cause_ = cause;
  if (ranks_.is_ending()) return;
  watch_.note_dying();
  ranks_.end(SIGTERM, watch_.printed() ? kAfterReport : kAfterFailure);
}

}  // namespace

RunEnd start_ranks(const StartOptions& options) { return Run(options).until_end(); }

}  // namespace trireme::apps
