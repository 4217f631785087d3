#include "core/train/stop.h"

#include <ATen/ops/full.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <ctime>
#include <memory>
#include <utility>

#include "core/base/repeated_signal.h"
#include "core/comm/flight/failure.h"
#include "core/comm/flight/recorder.h"
#include "core/comm/flight/stopping.h"

namespace trireme::train {
namespace {

// A handler can only use static variables, and call what is async-signal-safe.
volatile sig_atomic_t first_signal = 0;
volatile sig_atomic_t grace = 0;  // seconds
timespec first_time{};

void on_stop_signal(int number) {
  const int error = errno;
  const bool is_examined = number == SIGTERM && comm::flight::end_if_dying();
  if (first_signal == 0) {
    clock_gettime(CLOCK_MONOTONIC, &first_time);
    first_signal = number;
    if (grace > 0) alarm(static_cast<unsigned>(grace));
    if (!is_examined) comm::flight::say_request();
  } else if (is_second_request(first_time)) {
    comm::flight::note_signal(number);
    comm::flight::say_end(number, 0);
    _exit(128 + number);
  }
  errno = error;
}

void on_grace_over(int) {
  comm::flight::note_signal(first_signal);
  comm::flight::say_end(first_signal, grace);
  _exit(128 + first_signal);
}

void handle(int number, void (*handler)(int), struct sigaction& before) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  sigaction(number, nullptr, &before);
  if (before.sa_handler != SIG_IGN) sigaction(number, &action, nullptr);  // nohup, or a shell's background job
}

}  // namespace

StopSignals::StopSignals(unsigned grace_seconds) {
  first_signal = 0;
  grace = static_cast<sig_atomic_t>(grace_seconds);
  std::size_t i = 0;
  for (const int number : kSignals) handle(number, on_stop_signal, before_[i++]);
  handle(SIGALRM, on_grace_over, before_[i]);
}

StopSignals::~StopSignals() {
  comm::flight::end_stops();
  alarm(0);
  std::size_t i = 0;
  for (const int number : kSignals) sigaction(number, &before_[i++], nullptr);
  sigaction(SIGALRM, &before_[i], nullptr);
}

int StopSignals::received() { return first_signal; }

StoppedBySignal::StoppedBySignal(int number, std::string saved)
    : std::runtime_error(fmt::format("stopped by signal {} ({})", number, strsignal(number))),
      signal_(number),
      saved_(std::move(saved)) {}

bool PolledVote::any(bool mine) {
  auto answer = at::full({}, mine ? 1 : 0, at::TensorOptions(at::kInt).device(world_.device()));
  world_.group().all_reduce(answer, comm::ReduceOp::max);
  answers_.add({answer}, [this](const std::vector<double>& value) { yes_.read(value[0] != 0); });
  answers_.drain_to(lag_);
  return yes_.launched(static_cast<std::int64_t>(lag_));
}

std::function<void()> end_on_signal(comm::World& world) {
  return [vote = std::make_shared<PolledVote>(world)] {
    if (vote->any(StopSignals::received() != 0)) throw EvaluationStopped();
  };
}

StopOnRequest::StopOnRequest(std::optional<double> max_seconds, bool on_signals, unsigned grace_seconds)
    : max_seconds_(max_seconds), on_signals_(on_signals), grace_(grace_seconds) {}

void StopOnRequest::on_start(RunContext& run) {
  if (on_signals_) {
    signals_.reset();
    signals_.emplace(grace_);  // before anybody says that signals are taken
    comm::flight::begin_stops(run.world.info());
  }
  begin_ = Clock::now();
}

void StopOnRequest::on_step_begin(RunContext& run) {
  const bool over = max_seconds_ && std::chrono::duration<double>(Clock::now() - begin_).count() >= *max_seconds_;
  run.booster.vote(Vote::stop_by_signal, on_signals_ && StopSignals::received() != 0);
  run.booster.vote(Vote::stop_by_time, over && run.world.rank() == 0);
}

void StopOnRequest::on_log(RunContext& /*run*/, const StepLog& log) {
  const bool by_signal = log.votes.any(Vote::stop_by_signal);
  const bool asks = by_signal || log.votes.any(Vote::stop_by_time);
  if (asks && asked_by_.empty()) asked_by_ = by_signal ? kBySignal : kMaxSeconds;
  asked_.read(asks);
}

void StopOnRequest::on_step_end(RunContext& run, const StepEnd& /*step*/) {
  if (asked_.launched(Readback::lag(run.world.device())) && run.stopped_by.empty()) run.stopped_by = asked_by_;
}

}  // namespace trireme::train
