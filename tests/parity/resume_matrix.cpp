#include "tests/parity/resume_matrix.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>

#include "core/booster/weight_average.h"
#include "core/config/table.h"
#include "core/resume/run_folder.h"
#include "core/train/trainer.h"
#include "tests/parity/layout.h"
#include "tests/ranks/world.h"
#include "trireme.h"

namespace trireme::tests::resume_matrix {
namespace {

/// Copies of what a run holds now.
State state_of(train::RunContext& run) {
  State out;
  const auto add = [&](const char* what, const std::vector<shard::Slice>& slices) {
    for (auto slice : slices) {
      slice.placement.name = fmt::format("{} {}", what, slice.placement.name);
      slice.value = slice.value.detach().clone();
      out.tensors.push_back(std::move(slice));
    }
  };
  add("weight", run.boosted.model->state_dict());
  add("state", run.boosted.optimizer->state());
  if (run.boosted.average) add("average", run.boosted.average->state());
  const auto& state = run.state;
  out.numbers = {{"epoch", state.at.epoch},
                 {"step in the epoch", state.at.step_in_epoch},
                 {"step", state.at.global_step},
                 {"samples", state.at.samples},
                 {"skipped steps", state.skipped},
                 {"the epoch's sum of losses", state.epoch_loss.sum},
                 {"the epoch's weight", state.epoch_loss.weight},
                 {"epoch of the best evaluation", state.best.epoch}};
  if (const auto& scaler = run.boosted.optimizer->scaler(); scaler.enabled()) {
    const auto values = scaler.state();
    for (std::int64_t i = 0; i < values.numel(); ++i)
      out.numbers.emplace_back(fmt::format("loss scaler's number {}", i), values[i].item<double>());
  }
  return out;
}

class Recorder : public train::RunCallback {
 public:
  explicit Recorder(Trained& out) : out_(out) {}
  void on_start(train::RunContext& run) override {
    out_.begin = state_of(run);
    out_.staging_bytes = run.staging_bytes;
  }

  void on_log(train::RunContext& /*run*/, const train::StepLog& log) override {
    const auto add = [&](const char* what, double value) { report(log.at.global_step, what, value); };
    add("loss", log.loss);
    add("lr", log.lr);
    add("grad_norm", log.grad_norm);
    add("weight", log.weight);
    add("skipped", log.skipped ? 1 : 0);
    add("samples", static_cast<double>(log.samples));
  }
  void on_evaluate(train::RunContext& /*run*/, const train::Evaluation& evaluation) override {
    const auto add = [&](const std::string& what, double value) {
      report(evaluation.of.step, fmt::format("{} {}", evaluation.split, what), value);
    };
    add("loss", evaluation.result.loss);
    for (const auto& [metric, value] : evaluation.result.metrics) add(metric.name, value);
    add("is the best", evaluation.is_best ? 1 : 0);
  }
  void on_epoch_end(train::RunContext& run, const train::EpochEnd& epoch) override {
    report(run.state.at.global_step, "mean loss of the epoch", epoch.train_loss);
  }
  void on_save(train::RunContext& run, const std::string& checkpoint) override {
    if (run.state.at.global_step != kSaved) return;
    out_.saved = state_of(run);
    out_.full_saved = gathered(out_.saved.tensors, run.booster.mesh());
    out_.checkpoint = checkpoint;
  }
  void on_finish(train::RunContext& run, const train::RunResult& /*result*/) override { context_ = &run; }
  /// After the training: in on_finish() the model still has its averaged weights.
  void end() {
    out_.end = state_of(*context_);
    if (!out_.checkpoint.empty()) out_.full_end = gathered(out_.end.tensors, context_->booster.mesh());
  }

 private:
  void report(std::int64_t step, const std::string& what, double value) {
    if (step > kSaved) out_.reports.emplace_back(fmt::format("{} at step {}", what, step), value);
  }
  Trained& out_;
  train::RunContext* context_ = nullptr;
};

train::RunSetup setup_of(const Model& model, const Layout& layout, const std::string& dir, const std::string& from,
                         const LaunchInfo& info) {
  auto root = config::parse_text(model.toml, model.name + ".toml");
  const auto set = [&](const std::vector<std::string>& all) {
    for (const auto& one : all) config::apply_override(root, one);
  };
  if (from.empty()) set({fmt::format("run.checkpoint_every={}", kSaved)});
  set(layout.sets);
  set(model.sets);
  set({"run.dir=" + dir, "run.device=cpu", "data.workers=1", fmt::format("train.max_steps={}", kLast)});
  if (from.empty()) set({"run.keep_checkpoints=9", "run.resume=never"});
  if (!from.empty()) set({"run.keep_checkpoints=0", "run.resume=" + from});
  auto out = train::prepare_training(train::from_table(std::move(root), builtin_kinds()), info, Log(info.rank));
  out.plan.keeps_best = out.plan.saves_epochs = false;
  return out;
}

}  // namespace

Trained train_to_the_end(const Model& model, const Layout& layout, const std::string& folder, const std::string& from) {
  std::unique_ptr<comm::World> own;
  if (layout.alone) own = comm::World::start(LaunchInfo{}, {.device = "cpu"});
  auto& ranks = own ? *own : world();
  const auto dir = own ? fmt::format("{}-{}", folder, world().rank()) : folder;
  Trained out;
  const auto recorder = std::make_shared<Recorder>(out);
  auto inputs = setup_of(model, layout, dir, from, ranks.info());
  auto run_folder = train::open_run(inputs);
  train::Trainer trainer(std::move(inputs), ranks, std::move(run_folder), {recorder});
  trainer.train();
  recorder->end();
  return out;
}

}  // namespace trireme::tests::resume_matrix
