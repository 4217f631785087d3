#include "core/train/deadline.h"

#include <ATen/ops/full.h>

namespace trireme::train {

bool Deadline::passed(bool over) {
  auto answer = at::full({}, over ? 1 : 0, at::TensorOptions(at::kInt).device(world_.device()));
  world_.group().broadcast(answer, 0);
  answers_.add({answer}, [this, step = steps_](const std::vector<double>& value) {
    if (value[0] != 0 && !first_over_) first_over_ = step;
  });
  // Some ranks may have read more answers already, but none fewer: only answers that all ranks have read count.
  answers_.drain_to(lag_);
  const auto step = steps_++;
  return first_over_ && *first_over_ + lag_ <= step;
}

void TimeLimit::on_start(RunContext& run) {
  deadline_.emplace(run.world, Deadline::lag_on(run.world.device()));
  begin_ = Clock::now();
}

void TimeLimit::on_step_end(RunContext& run, const StepEnd& /*step*/) {
  if (run.stopped_by.empty() && deadline_->passed(Clock::now() - begin_ >= limit_))
    run.stopped_by = "train.max_seconds";
}

}  // namespace trireme::train
