#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/base/clock.h"
#include "core/resume/restart.h"
#include "core/resume/run_folder.h"
#include "core/train/callbacks.h"

namespace trireme::train {
namespace {

class MetricsFile final : public RunCallback {
 public:
  void on_start(RunContext& run) override {
    const auto& [lost, end] = run.folder->dropped();
    const auto& setup = run.setup;
    nlohmann::json line{{"kind", "event"},
                        {"event", kStartEvent},
                        {"step", run.state.at.global_step},
                        {"steps", setup.batch.steps},
                        {"ranks", run.world.size()},
                        {"layout", run.booster.mesh().formula()},
                        {"plugin", run.booster.plugin().name()},
                        {"best_by", {{"name", setup.task.best.name}, {"fraction", setup.task.best.fraction}}},
                        {"start_up_s", unix_seconds() - setup.began},
                        {"idle_s", end > 0 ? std::max(0.0, setup.began - end) : 0.0},
                        {"lost_s", lost}};
    if (!run.resumed_from.empty()) line["from"] = run.resumed_from;
    if (const auto restart = restart_of_this_process())
      line["restart"] = {{"number", restart->number}, {"cause", restart->cause}};
    run.folder->metric(std::move(line));
  }
  void on_log(RunContext& run, const StepLog& log) override {
    nlohmann::json line{{"kind", "step"},
                        {"step", log.at.global_step},
                        {"epoch", log.at.epoch + 1},
                        {"loss", log.loss},
                        {"lr", log.lr},
                        {"grad_norm", log.grad_norm},
                        {"samples", log.samples},
                        {"samples_per_s", static_cast<double>(log.samples) / log.seconds},
                        {"data_wait", log.data_wait},
                        {"worker_samples_per_s", run.boosted.loader->worker_rates()}};
    const bool skips = run.setup.config.train.on_nonfinite == "skip";
    if (skips || run.boosted.optimizer->scaler().enabled()) line["skipped"] = log.skipped;
    // The labels by which the loss is divided are here the tokens that the model has learned to predict.
    if (run.setup.task.kind.name() == "causal_lm") line["tokens"] = static_cast<std::int64_t>(log.weight);
    if (log.flops) line["flops_per_s"] = *log.flops / log.seconds;
    if (log.flops && run.peak_flops) line["mfu"] = *log.flops / log.seconds / *run.peak_flops;
    run.folder->metric(std::move(line));
    if (skips && log.skipped)
      run.folder->metric({{"kind", "event"}, {"event", "skipped"}, {"step", log.at.global_step}});
  }
  void on_evaluate(RunContext& run, const Evaluation& evaluation) override {
    nlohmann::json line{{"kind", "eval"},
                        {"split", evaluation.split},
                        {"step", evaluation.of.step},
                        {"epoch", evaluation.of.epoch},
                        {"samples", evaluation.result.samples},
                        {"seconds", evaluation.result.seconds}};
    line.update(to_json(evaluation.result));
    if (evaluation.is_best) line["best"] = true;
    if (!evaluation.weights.empty()) line["weights"] = evaluation.weights;
    if (evaluation.epoch) {
      line["train_loss"] = evaluation.epoch->train_loss;
      line["epoch_seconds"] = evaluation.epoch->seconds;
      if (evaluation.epoch->padded_share) line["padded_share"] = *evaluation.epoch->padded_share;
    }
    run.folder->metric(std::move(line));
  }
};

}  // namespace

std::shared_ptr<RunCallback> metrics_file() { return std::make_shared<MetricsFile>(); }

}  // namespace trireme::train
