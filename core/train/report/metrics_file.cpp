#include <nlohmann/json.hpp>

#include "core/resume/restart.h"
#include "core/resume/run_folder.h"
#include "core/train/callbacks.h"

namespace trireme::train {
namespace {

class MetricsFile final : public RunCallback {
 public:
  void on_start(RunContext& run) override {
    const auto& from = run.resumed_from;
    if (!from.empty())
      run.folder->metric({{"kind", "event"}, {"event", "resume"}, {"from", from}, {"step", run.state.at.global_step}});
    if (const auto restart = restart_of_this_process())
      run.folder->metric({{"kind", "event"},
                          {"event", "restart"},
                          {"number", restart->number},
                          {"ranks", run.world.size()},
                          {"cause", restart->cause},
                          {"step", run.state.at.global_step}});
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
