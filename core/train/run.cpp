// `trireme train`: a Trainer with the command's callbacks.
#include "core/train/run.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/base/error.h"
#include "core/base/log.h"
#include "core/base/verdict.h"
#include "core/checkpoint/shared_errors.h"
#include "core/comm/host_values.h"
#include "core/plan/forecast.h"
#include "core/plan/meta_kernels.h"
#include "core/train/callbacks.h"
#include "core/train/stop.h"
#include "core/train/trainer.h"

namespace trireme::train {
namespace {

/// Writes this rank's step times, and the error that ends it, to its own log (run.rank_logs). The rank's Log writes
/// notes and warnings to the same file.
class RankLog final : public RunCallback {
 public:
  /// @pre `file` is not null
  explicit RankLog(std::shared_ptr<LogFile> file) : file_(std::move(file)) {}
  void on_step_end(RunContext& run, const StepEnd& step) override {
    file_->line(fmt::format(
        "step {}: {:.4f} s, of which {:.4f} s waiting for data; {} samples here; workers read {:.1f} samples/s",
        run.state.at.global_step, step.seconds, step.data, step.batch.local_samples,
        fmt::join(run.boosted.loader->worker_rates(), ", ")));
  }
  void on_evaluate(RunContext& /*run*/, const Evaluation& evaluation) override {
    file_->line(fmt::format("evaluation of the {} split: {:.4f} s", evaluation.split, evaluation.result.seconds));
  }
  void on_exception(const std::exception_ptr& error) override { file_->line("error: " + verdict_on(error).message); }

 private:
  std::shared_ptr<LogFile> file_;
};

/// What the run will cost, or why that cannot be known, such as for blocks that look at values.
std::shared_ptr<const plan::Forecast> forecast_of(const RunSetup& setup, const comm::World& world) {
  try {
    plan::Machine machine;
    if (!setup.config.run.machine.empty()) machine = plan::Machine::load(setup.config.run.machine);
    machine.device = world.device().is_cuda() ? "cuda" : "cpu";
    machine.ranks_per_host = world.info().local_size;
    const plan::MetaKernels kernels;
    return std::make_shared<const plan::Forecast>(plan::forecast(setup, machine));
  } catch (const std::exception&) {
    return std::make_shared<const plan::Forecast>(
        plan::Forecast{.problem = verdict_on(std::current_exception()).message});
  }
}

/// The callbacks of the command, in the order in which they are called.
Callbacks command_callbacks(const RunSetup& setup, const RunFolder& folder, const comm::World& world,
                            const RunOptions& options) {
  const auto& train = setup.config.train;
  Callbacks callbacks;
  const auto add = [&](std::shared_ptr<RunCallback> callback) { callbacks.push_back(std::move(callback)); };
  if (const auto& log = setup.log.file()) {
    // Rank 0 has moved an earlier run away, so the file is in this run's folder.
    const auto file = fmt::format("{}/{}/rank-{}.log", folder.dir(), kLogs, world.rank());
    checkpoint::on_every_rank(
        world, [&] { log->open(file); }, "a rank's log cannot be written");
    add(std::make_shared<RankLog>(log));
  }
  add(metrics_file());
  add(time_split());
  if (setup.config.run.tensorboard) add(tensorboard());
  add(console_report(options.terminal, world.rank() == 0));
  if (setup.config.run.forecast) add(plan_comparison(world.rank() == 0 ? forecast_of(setup, world) : nullptr));
  if (const auto every = setup.config.run.rank_times_every; every > 0 && world.size() > 1) add(rank_times(every));
  if (train.patience) add(early_stop(*train.patience));
  if (options.timeline) add(timeline(options.terminal.columns));
  add(std::make_shared<StopOnRequest>(train.max_seconds, /*on_signals=*/true,
                                      static_cast<unsigned>(setup.config.run.stop_grace_s)));
  for (const auto& make : setup.config.kinds.callbacks) {
    add(make());
    TRIREME_REQUIRE(callbacks.back() != nullptr, "a maker of Kinds::callbacks returned null");
  }
  callbacks.insert(callbacks.end(), options.callbacks.begin(), options.callbacks.end());
  return callbacks;
}

}  // namespace

void run_training(RunSetup setup, comm::World& world, std::unique_ptr<RunFolder> folder, RunOptions options) {
  const auto done = comm::broadcast_text(world.group(), folder->resume_point().done);
  if (!done.empty()) return Console(options.terminal, world.rank() == 0).line(done);
  setup.plan.keeps_last = false;  // the process ends
  auto callbacks = command_callbacks(setup, *folder, world, options);
  Trainer(std::move(setup), world, std::move(folder), std::move(callbacks)).train();
}

}  // namespace trireme::train
