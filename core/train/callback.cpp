#include "core/train/callback.h"

#include "core/resume/export.h"
#include "core/resume/run_folder.h"
#include "core/setup/export_texts.h"
#include "core/train/callbacks.h"
#include "core/train/stop.h"

namespace trireme::train {

RunContext::RunContext(RunSetup of, comm::World& on, std::unique_ptr<RunFolder> in, Callbacks calls)
    : setup(std::move(of)),
      world(on),
      folder(in ? std::move(in) : open_run(setup)),
      best(std::make_unique<BestModel>(folder->dir(), exported_texts(setup), setup.weights.lora)),
      callbacks(std::move(calls)),
      booster(world, std::move(setup.plugin), booster_options(setup.config), &setup.log) {
  if (setup.config.run.on_save_error != "stop") folder->bear_errors(setup.log);
}

RunContext::~RunContext() = default;

bool RunContext::is_over() const {
  return state.at.epoch >= setup.config.train.epochs || state.at.global_step >= setup.batch.steps ||
         !stopped_by.empty();
}

bool RunContext::is_stopped_by_signal() const { return stopped_by == StopOnRequest::kBySignal; }

void RunContext::say(const std::string& line) { call(&RunCallback::on_message, line); }

namespace {

class EarlyStop final : public RunCallback {
 public:
  explicit EarlyStop(std::int64_t patience) : patience_(patience) {}
  /// A run that was stopped stays stopped when it is resumed.
  void on_start(RunContext& run) override { check(run); }
  void on_evaluate(RunContext& run, const Evaluation& /*evaluation*/) override { check(run); }

 private:
  void check(RunContext& run) const {
    if (run.stopped_by.empty() && run.state.evaluations_since_best >= patience_) run.stopped_by = "train.patience";
  }
  std::int64_t patience_;
};

}  // namespace

std::shared_ptr<RunCallback> early_stop(std::int64_t patience) { return std::make_shared<EarlyStop>(patience); }

}  // namespace trireme::train
