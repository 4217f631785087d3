#include "core/train/stop.h"

#include <ATen/ops/full.h>
#include <fmt/format.h>

#include <cstring>
#include <utility>

#include "core/comm/flight/stopping.h"

namespace trireme::train {

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
