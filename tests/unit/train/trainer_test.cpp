// A program's Trainer on one rank: it is the command's training, evaluates, saves, stops and resumes as its arguments
// say, and shows a table. The best weights are in trainer_best_test.cpp, layouts in tests/parity/trainer_test.cpp.
#include "core/train/trainer.h"

#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "core/base/error.h"
#include "core/base/files/files.h"
#include "core/data/dataset_wrapper.h"
#include "tests/unit/datasets/folder.h"
#include "tests/unit/train/program.h"

namespace trireme::train {
namespace {

using data::testing_tools::Folder;
using testing_tools::Events;
using testing_tools::kFile;
using testing_tools::Program;
using testing_tools::setup_of;
using testing_tools::shown_by;
using testing_tools::train_small;

TEST(Trainer, IsTheCommandsTraining) {
  const Folder folder;
  const Program program;
  testing_tools::train_small(setup_of(kFile, {"run.dir=" + folder.path("file")}));
  shown_by([&] { Trainer(*program.world, Program::arguments(folder.path("program")), program.inputs()).train(); });
  EXPECT_EQ(read_file(folder.path("file/model/model.safetensors")),
            read_file(folder.path("program/model/model.safetensors")));
}

// A model with adapters saves these alone, and they can be loaded again.
TEST(Trainer, SavesAndLoadsAdapters) {
  const Folder folder;
  const Program program;
  const auto base = folder.path("base"), saved = folder.path("saved");
  testing_tools::train_small(setup_of(kFile, {"run.dir=" + base}));
  auto run = setup_of(kFile, {"run.dir=" + folder.path("run"), "model.weights=" + base, "lora.target=[\"query\"]"});
  const auto data = run.data.validation;
  shown_by([&] {
    Trainer trainer(std::move(run), *program.world, nullptr, {});
    trainer.train();
    const auto loss = trainer.evaluate(data).loss;
    trainer.save_model(saved);
    for (const auto& slice : trainer.boosted().model->weights())
      if (slice.placement.name.find("lora_B") != std::string::npos) slice.value.detach().zero_();
    trainer.boosted().model->weights_changed();
    EXPECT_NE(trainer.evaluate(data).loss, loss);
    trainer.boosted().load_model(saved);
    EXPECT_EQ(trainer.evaluate(data).loss, loss);
  });
  EXPECT_TRUE(std::filesystem::exists(saved + "/adapter_config.json"));
  EXPECT_TRUE(std::filesystem::exists(saved + "/adapter_model.safetensors"));
  EXPECT_FALSE(std::filesystem::exists(saved + "/model.safetensors"));
  EXPECT_FALSE(std::filesystem::exists(saved + "/config.json"));
}

TEST(Trainer, EvaluatesAndSavesByItsStrategies) {
  const struct {
    Strategy eval, save;
    std::int64_t eval_steps;
    const char* events;
  } cases[]{{Strategy::no, Strategy::no, 4, ""},
            {Strategy::epoch, Strategy::no, 4, "eval6 eval12"},
            {Strategy::steps, Strategy::epoch, 4, "eval4 save6 eval8 eval12 save12"},
            {Strategy::steps, Strategy::epoch, 5, "eval5 save6 eval10 save12 eval12"},
            {Strategy::no, Strategy::steps, 4, "save5 save10 save12"}};
  const Program program;
  for (const auto& c : cases) {
    const Folder folder;
    const auto events = std::make_shared<Events>();
    auto arguments = Program::arguments(folder.path("run"));
    arguments.eval_strategy = c.eval;
    arguments.eval_steps = c.eval_steps;
    arguments.save_strategy = c.save;
    arguments.save_steps = 5;
    RunResult result;
    shown_by([&] { result = Trainer(*program.world, arguments, program.inputs({events})).train(); });
    EXPECT_EQ(fmt::format("{}", fmt::join(events->all, " ")), c.events);
    EXPECT_EQ(result.state.last.step, c.eval == Strategy::no ? 0 : 12) << "the last weights' metrics";
  }
}

TEST(Trainer, ShowsTheTrainingAsATable) {
  const Folder folder;
  const Program program;
  auto arguments = Program::arguments(folder.path("run"));
  arguments.logging_steps = 5;
  auto inputs = program.inputs();
  inputs.test = program.data.test;
  const auto text = shown_by([&] { Trainer(*program.world, arguments, inputs).train(); });
  for (const char* line :
       {"\n  examples                        42\n", "\n  epochs                           2\n",
        "\n  batch size per device            4\n", "\n  total batch size                 8\n",
        "\n  accumulation steps               2\n", "\n  optimization steps              12\n",
        "\n epoch     step   training loss   validation loss   accuracy", "\n     1        6   ",
        "\n     2       12   ", "\nstep 5   loss ", "\nstep 10   loss ", "\ntest (last weights)   loss ", "\ndone in "})
    EXPECT_NE(text.find(line), std::string::npos) << line << "\nin\n" << text;
}

// A loss is weighted by the task's weight, here by the classes of the samples.
TEST(Trainer, ShowsTheMeanLossSinceTheLastRow) {
  const Folder folder;
  const Program program;
  const auto events = std::make_shared<Events>();
  auto arguments = Program::arguments(folder.path("run"));
  arguments.eval_strategy = Strategy::steps;
  arguments.eval_steps = 5;
  auto inputs = program.inputs({events});
  inputs.task = tasks::classification({.data = program.data.info.spec, .class_weights = {1, 9, 1}});
  const auto text = shown_by([&] { Trainer(*program.world, arguments, inputs).train(); });
  const auto mean = [&](const auto& weight_of) {
    double sum = 0, weight = 0;
    for (std::size_t i = 0; i < 5; ++i) {
      sum += events->steps[i].loss * weight_of(events->steps[i]);
      weight += weight_of(events->steps[i]);
    }
    return fmt::format("\n     1        5   {:>13.4f}   ", sum / weight);
  };
  const auto row = mean([](const StepLog& step) { return step.weight; });
  ASSERT_NE(row, mean([](const StepLog& step) { return static_cast<double>(step.samples); }));
  EXPECT_NE(text.find(row), std::string::npos) << row << "\nin\n" << text;
}

TEST(Trainer, MeansLeaveOutALossThatOverflows) {
  const Folder folder;
  const Program program;
  const auto events = std::make_shared<Events>();
  auto arguments = Program::arguments(folder.path("run"));
  arguments.precision = "fp16";
  arguments.eval_strategy = Strategy::steps;
  arguments.eval_steps = 4;
  auto inputs = program.inputs({events});
  inputs.loss = [task = inputs.task](const nn::Tensors& outputs, const data::Batch& batch,
                                     const Task::LossOptions& options) {
    const auto loss = task->loss(outputs, batch, options);
    return options.training && batch.step == 1 ? loss * INFINITY : loss;
  };
  const auto text = shown_by([&] { Trainer(*program.world, arguments, inputs).train(); });
  ASSERT_FALSE(std::isfinite(events->steps.at(1).loss));
  EXPECT_TRUE(std::isfinite(events->epochs.at(0).train_loss));
  EXPECT_EQ(text.find("inf"), std::string::npos) << text;
  EXPECT_EQ(text.find("nan"), std::string::npos) << text;
}

TEST(Trainer, ResumesWithTheSameWeights) {
  const Folder folder;
  const Program program;
  std::vector<std::int64_t> resumed_at;
  shown_by([&] {
    Trainer(*program.world, Program::arguments(folder.path("straight")), program.inputs()).train();
    for (const std::int64_t steps : {4, 12}) {
      auto arguments = Program::arguments(folder.path("stopped"));
      arguments.save_strategy = Strategy::steps;
      arguments.save_steps = 2;
      arguments.async_save = true;
      arguments.resume_from_checkpoint = "auto";
      // The schedule's length is that of the whole training, so a callback stops it.
      struct Stop : RunCallback {
        std::int64_t after = 0;
        void on_step_end(RunContext& run, const StepEnd& /*step*/) override {
          if (run.state.at.global_step == after) run.stopped_by = "the test";
        }
      };
      const auto stop = std::make_shared<Stop>();
      stop->after = steps;
      Trainer trainer(*program.world, arguments, program.inputs({stop}));
      resumed_at.push_back(trainer.train().resumed_at);
    }
  });
  EXPECT_EQ(resumed_at, (std::vector<std::int64_t>{0, 4}));
  EXPECT_EQ(read_file(folder.path("straight/model/model.safetensors")),
            read_file(folder.path("stopped/model/model.safetensors")));
}

/// Takes the run's checkpoints folder away in steps 3 and 4, and puts a file in its place.
struct BlockSaves : RunCallback {
  std::vector<std::string> saved;
  void on_step_end(RunContext& run, const StepEnd& /*step*/) override {
    const auto folder = run.folder->dir() + "/checkpoints", away = folder + ".away";
    const auto step = run.state.at.global_step;
    if (step == 3) {
      std::filesystem::rename(folder, away);
      write_file(folder, "in the way");
    } else if (step == 5) {
      std::filesystem::remove(folder);
      std::filesystem::rename(away, folder);
    }
  }
  void on_save(RunContext& /*run*/, const std::string& folder) override {
    saved.push_back(std::filesystem::path(folder).filename());
  }
};

TEST(Trainer, GoesOnOrStopsWhenACheckpointCannotBeWritten) {
  const Folder folder;
  for (const std::string policy : {"continue", "stop"}) {
    const auto block = std::make_shared<BlockSaves>();
    const auto dir = folder.path(policy);
    const std::vector<std::string> set{"run.dir=" + dir, "run.checkpoint_every=2", "run.on_save_error=" + policy};
    testing::internal::CaptureStderr();
    if (policy == "stop")
      EXPECT_THROW(train_small(setup_of(kFile, set), {.callbacks = {block}}), CheckpointError);
    else
      train_small(setup_of(kFile, set), {.callbacks = {block}});
    testing::internal::GetCapturedStderr();
    if (policy == "stop") {
      EXPECT_EQ(block->saved, (std::vector<std::string>{"step-00000002"}));
      continue;
    }
    EXPECT_EQ(block->saved, (std::vector<std::string>{"step-00000002", "step-00000006", "step-00000008",
                                                      "step-00000010", "step-00000012"}));
    EXPECT_NE(read_file(dir + "/metrics.jsonl").find("\"event\":\"save_error\""), std::string::npos);
  }
}

TEST(Trainer, PredictsAndEvaluatesWithoutATraining) {
  const Folder folder;
  const Program program;
  Trainer trainer(*program.world, Program::arguments(folder.path("run")), program.inputs());
  const auto predicted = trainer.predict(program.data.test);
  ASSERT_EQ(predicted.samples.size(0), program.data.test->size());
  EXPECT_EQ(predicted.outputs[0].size(1), 3);
  const auto right = predicted.outputs[0].argmax(-1).eq(predicted.targets[nn::kLabels]).to(at::kDouble).mean();
  EXPECT_NEAR(trainer.evaluate(program.data.test).value("accuracy"), right.item<double>(), 1e-12);
  trainer.save_model(folder.path("weights"));
  EXPECT_TRUE(std::filesystem::exists(folder.path("weights/model.safetensors")));
}

/// A data set one of whose samples ends the pass.
class BrokenSample final : public data::DatasetWrapper {
 public:
  explicit BrokenSample(std::shared_ptr<data::Dataset> of) : DatasetWrapper(std::move(of)) {}
  [[nodiscard]] data::RowSamples* rows() override { return nullptr; }
  std::optional<data::Sample> get(std::int64_t index, std::int64_t epoch, bool augment) override {
    if (index == 1) throw DataError("a broken sample");
    return DatasetWrapper::get(index, epoch, augment);
  }
};

TEST(Trainer, AnEvaluationThatFailsLeavesTheModelInTrainingMode) {
  const Folder folder;
  const Program program;
  Trainer trainer(*program.world, Program::arguments(folder.path("run")), program.inputs());
  EXPECT_THROW(trainer.evaluate(std::make_shared<BrokenSample>(program.data.test)), DataError);
  for (const auto& module : trainer.boosted().model->module().modules()) EXPECT_TRUE(module->is_training());
}

// The training's count of steps is the model's.
TEST(Trainer, StepsThatWereMadeBeforeItAreRefused) {
  const Folder folder;
  const Program program;
  Trainer trainer(*program.world, Program::arguments(folder.path("run")), program.inputs());
  auto& run = trainer.boosted();
  run.loader->start_epoch(0, 0);
  run.train_step(*run.loader->next());
  try {
    trainer.train();
    ADD_FAILURE() << "accepted";
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("has made 1 steps before train()"), std::string::npos) << error.what();
  }
}

TEST(Trainer, RefusesWhatItCannotDo) {
  const Folder folder;
  const Program program;
  using Change = void (*)(TrainingArguments&, TrainerInputs&);
  const struct {
    Change change;
    const char* message;
  } cases[]{
      {[](auto& a, auto&) { a.output_dir = ""; }, "TrainingArguments::output_dir: is empty"},
      {[](auto& a, auto&) { a.num_train_epochs = 0; }, "TrainingArguments::num_train_epochs: 0 must be at least 1"},
      {[](auto& a, auto& i) { a.load_best_model_at_end = true, i.eval = nullptr; }, "needs evaluations"},
      {[](auto& a, auto&) { a.early_stopping_patience = 1; }, "needs load_best_model_at_end"},
      {[](auto& a, auto&) { a.metric_for_best_model = "acuracy"; }, "did you mean \"validation.accuracy\""},
      {[](auto& a, auto&) {
         a.plugin_options = {{"stagge", std::int64_t{1}}};
       },
       "stagge"},
      {[](auto&, auto& i) { i.task = nullptr; }, "needs a model, a task and training data"}};
  for (const auto& c : cases) {
    auto arguments = Program::arguments(folder.path("run"));
    auto inputs = program.inputs();
    c.change(arguments, inputs);
    try {
      const Trainer trainer(*program.world, arguments, inputs);
      ADD_FAILURE() << "accepted, expected: " << c.message;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(c.message), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace trireme::train
