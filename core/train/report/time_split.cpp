#include "core/train/report/time_split.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/comm/comm_stats.h"
#include "core/comm/flight/recorder.h"
#include "core/train/callbacks.h"

namespace trireme::train {
namespace {

using comm::flight::Phase;

TimeSplit* active = nullptr;  ///< whose watch it is

std::size_t index(Phase phase) { return static_cast<std::size_t>(phase); }

class TimeSplitReport final : public RunCallback {
 public:
  void on_step_begin(RunContext& run) override {
    const auto device = run.world.device();
    if (run.world.rank() != 0 || ++begun_ <= kWarmUp || begun_ > kWarmUp + (device.is_cpu() ? kSteps : kGpuSteps))
      return;
    if (!split_) split_ = std::make_unique<TimeSplit>(device);
    split_->begin_step();
  }
  void on_step_end(RunContext& /*run*/, const StepEnd& step) override {
    if (split_) split_->end_step({step.seconds, step.data, step.communication});
  }
  void on_summary(RunContext& /*run*/, nlohmann::json& summary) override {
    if (split_ && split_->steps() > 0) summary["split"] = split_->mean();
    split_.reset();
  }
  void on_exception(const std::exception_ptr& /*error*/) override { split_.reset(); }

 private:
  static constexpr std::int64_t kWarmUp = 2, kSteps = 1000, kGpuSteps = 100;  // whose passes have marks
  std::int64_t begun_ = 0;
  std::unique_ptr<TimeSplit> split_;
};

}  // namespace

c10::Event mark_on(c10::Device device) {
  c10::Event mark(device.type(), c10::EventFlag::BACKEND_DEFAULT);  // with the time
  mark.record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  return mark;
}

double seconds_between(const c10::Event& begin, const c10::Event& end) { return begin.elapsedTime(end) / 1000; }

TimeSplit::TimeSplit(c10::Device device) : device_(device) {
  if (active != nullptr) return;
  active = this;
  comm::flight::watch_phases([this](Phase phase, bool begins) {
    if (in_step_) at(phase, begins);
  });
}

TimeSplit::~TimeSplit() {
  if (active != this) return;
  comm::flight::watch_phases(nullptr);
  active = nullptr;
}

void TimeSplit::begin_step() { in_step_ = active == this; }

void TimeSplit::end_step(const StepTime& time) {
  if (!std::exchange(in_step_, false)) return;
  ++steps_;
  sum_.seconds += time.seconds;
  sum_.data += time.data;
  sum_.communication += time.communication;
}

nlohmann::json TimeSplit::mean() const { return mean(sum_.seconds); }

nlohmann::json TimeSplit::mean(double whole) const {
  if (!device_.is_cpu()) c10::impl::VirtualGuardImpl(device_.type()).synchronizeDevice(device_.index());
  const auto of_step = [&](double of_all) { return of_all / static_cast<double>(steps_); };
  nlohmann::json split{{"data", of_step(sum_.data)}, {"communication", nullptr}};
  double other = whole - sum_.data;
  for (const auto& [name, phase] :
       {std::pair{"forward", Phase::forward}, {"backward", Phase::backward}, {"optimizer", Phase::update}}) {
    split[name] = of_step(seconds_of(phase));
    other -= seconds_of(phase);
  }
  if (device_.is_cpu()) {
    split["communication"] = of_step(sum_.communication);
    other -= sum_.communication;
  }
  split["other"] = of_step(std::max(0.0, other));
  return split;
}

double TimeSplit::seconds_of(Phase phase) const {
  const auto& [seconds, marks] = phases_[index(phase)];
  double sum = seconds;
  for (std::size_t i = 0; i + 1 < marks.size(); i += 2) sum += seconds_between(marks[i], marks[i + 1]);
  return sum;
}

/// Of one thread: that of the training. Must not throw at an end, where a destructor calls it: what is wrong with the
/// device is then the error of the next operation.
void TimeSplit::at(Phase phase, bool begins) {
  auto& time = phases_[index(phase)];
  if (device_.is_cpu()) {
    const auto now = std::chrono::steady_clock::now() - comm::time_in_waits();
    if (begins)
      began_ = now;
    else
      time.seconds += std::chrono::duration<double>(now - began_).count();
    return;
  }
  try {
    time.marks.push_back(mark_on(device_));
  } catch (const c10::Error&) {
    if (begins) throw;
  }
}

std::shared_ptr<RunCallback> time_split() { return std::make_shared<TimeSplitReport>(); }

}  // namespace trireme::train
