#include "core/train/report/rank_log.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/base/verdict.h"

namespace trireme::train {

void RankLog::on_step_end(RunContext& run, const StepEnd& step) {
  file_->line(fmt::format(
      "step {}: {:.4f} s, of which {:.4f} s waiting for data; {} samples here; workers read {:.1f} samples/s",
      run.state.at.global_step, step.seconds, step.data, step.batch.local_samples,
      fmt::join(run.boosted.loader->worker_rates(), ", ")));
}

void RankLog::on_evaluate(RunContext& /*run*/, const Evaluation& evaluation) {
  file_->line(fmt::format("evaluation of the {} split: {:.4f} s", evaluation.split, evaluation.result.seconds));
}

void RankLog::on_exception(const std::exception_ptr& error) { file_->line("error: " + verdict_on(error).message); }

}  // namespace trireme::train
