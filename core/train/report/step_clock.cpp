#include "core/train/report/step_clock.h"

#include "core/comm/comm_stats.h"

namespace trireme::train {

using Seconds = std::chrono::duration<double>;
using MonotonicClock = std::chrono::steady_clock;

void StepClock::start() {
  begin_ = MonotonicClock::now();
  waited_ = comm::time_in_waits();
}

double StepClock::elapsed() const { return Seconds(MonotonicClock::now() - begin_).count(); }

StepTime StepClock::end_step(double data) {
  const StepTime time{elapsed(), data, Seconds(comm::time_in_waits() - waited_).count()};
  start();
  return time;
}

ScopeGuard StepClock::pause() {
  return ScopeGuard([this, begin = MonotonicClock::now(), waited = comm::time_in_waits()] {
    begin_ += MonotonicClock::now() - begin;
    waited_ += comm::time_in_waits() - waited;
  });
}

}  // namespace trireme::train
