#include <fmt/format.h>

#include <optional>
#include <string>
#include <utility>

#include "core/resume/run_folder.h"
#include "core/train/callbacks.h"
#include "core/train/report/event_file.h"

namespace trireme::train {
namespace {

class TensorBoard final : public RunCallback {
 public:
  void on_start(RunContext& run) override {
    run.folder->record(kTensorBoard, [&] {
      EventFile file(fmt::format("{}/{}", run.folder->dir(), kTensorBoard));
      if (!run.resumed_from.empty()) file.restart_at(run.resumed_at + 1);
      file_ = std::move(file);
    });
  }
  void on_log(RunContext& run, const StepLog& log) override {
    if (!file_) return;
    Scalars scalars{{"train/loss", log.loss},
                    {"train/lr", log.lr},
                    {"train/grad_norm", log.grad_norm},
                    {"train/samples_per_s", static_cast<double>(log.samples) / log.seconds},
                    {"train/data_wait", log.data_wait}};
    if (log.flops) scalars.emplace_back("train/flops_per_s", *log.flops / log.seconds);
    if (log.flops && run.peak_flops) scalars.emplace_back("train/mfu", *log.flops / log.seconds / *run.peak_flops);
    run.folder->record(kTensorBoard, [&] { file_->add(log.at.global_step, scalars); });
  }
  void on_evaluate(RunContext& run, const Evaluation& evaluation) override {
    if (!file_) return;
    std::string split = evaluation.split;
    // The best weights are of an earlier step: under the same tag, the point would go back in time.
    if (evaluation.weights == "best") split += "_best";
    Scalars scalars{{split + "/" + kLoss, evaluation.result.loss}};
    for (const auto& [metric, value] : evaluation.result.metrics)
      scalars.emplace_back(split + "/" + metric.name, value);
    if (evaluation.epoch) scalars.emplace_back("train/epoch_loss", evaluation.epoch->train_loss);
    run.folder->record(kTensorBoard, [&] { file_->add(evaluation.of.step, scalars); });
  }

 private:
  std::optional<EventFile> file_;  ///< only on rank 0, from on_start()
};

}  // namespace

std::shared_ptr<RunCallback> tensorboard() { return std::make_shared<TensorBoard>(); }

}  // namespace trireme::train
