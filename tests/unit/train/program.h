// A program's small run, and a callback that records it.
#pragma once

#include <fmt/format.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/train/trainer.h"
#include "models/registry.h"
#include "models/vit/kind.h"
#include "tasks/tasks.h"
#include "tests/unit/train/small_run.h"

namespace trireme::train::testing_tools {

/// Images of leaves and a small ViT for them, in both ways that a run can name them.
inline const auto kFile = kModelAndData + R"([run]
device = "cpu"
seed = 5
[train]
epochs = 2
global_batch = 8
micro_batch = 4
max_norm = 1.0
[optimizer]
lr = 1e-3
[schedule]
name = "linear"
)";

struct Program {
  std::unique_ptr<comm::World> world = comm::World::start(LaunchInfo{}, {.device = "cpu"});
  data::DatasetFactory source;
  data::Datasets data;
  std::shared_ptr<nn::ModelKind> kind = models::all_models().at("vit");
  models::vit::Options vit;

  Program() {
    datasets::LeavesOptions leaves;
    leaves.images = 60;
    leaves.image_size = nn::ImageSize(16);
    source = datasets::leaves(leaves);
    data = data::open(source, {.seed = 5, .log = Log(1)});
    vit.hidden_size = 16;
    vit.num_layers = 1;
    vit.num_heads = 2;
    vit.intermediate_size = 32;
    vit.patch_size = 8;
    kind->resolve(&vit, data.info.spec);
  }
  [[nodiscard]] TrainerInputs inputs(Callbacks callbacks = {}) const {
    return {.model = [this] { return ModelSource{.model = kind->make(&vit)}; },
            .task = tasks::classification({.data = data.info.spec}),
            .train = data.train,
            .eval = data.validation,
            .callbacks = std::move(callbacks)};
  }
  static TrainingArguments arguments(const std::string& dir) {
    return {.output_dir = dir,
            .per_device_train_batch_size = 4,
            .gradient_accumulation_steps = 2,
            .num_train_epochs = 2,
            .learning_rate = 1e-3,
            .seed = 5};
  }
};

/// Records when a run evaluates and saves, and its losses.
struct Events : RunCallback {
  std::vector<std::string> all;
  std::vector<double> losses;  ///< of evaluations
  std::vector<StepLog> steps;
  std::vector<EpochEnd> epochs;
  void on_log(RunContext& /*run*/, const StepLog& log) override { steps.push_back(log); }
  void on_epoch_end(RunContext& /*run*/, const EpochEnd& epoch) override { epochs.push_back(epoch); }
  void on_evaluate(RunContext& run, const Evaluation& evaluation) override {
    all.push_back(fmt::format("eval{}", run.state.at.global_step));
    losses.push_back(evaluation.result.loss);
  }
  void on_save(RunContext& run, const std::string& /*checkpoint*/) override {
    all.push_back(fmt::format("save{}", run.state.at.global_step));
  }
};

}  // namespace trireme::train::testing_tools
