// A program's Trainer on one rank: it is the command's training, evaluates, saves, stops and resumes as its arguments
// say, and shows a table. Layouts are in tests/parity/trainer_test.cpp.
#include "core/train/trainer.h"

#include <ATen/ops/full.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "core/base/error.h"
#include "core/checkpoint/files.h"
#include "core/train/run.h"
#include "models/registry.h"
#include "models/vit/options.h"
#include "tasks/tasks.h"
#include "tests/unit/data/folder.h"
#include "trireme.h"

namespace trireme::train {
namespace {

using data::testing_tools::Folder;

/// Images of leaves and a small ViT for them, in both ways that a run can name them.
constexpr const char* kFile = R"([run]
device = "cpu"
seed = 5
[model]
hidden_size = 16
num_layers = 1
num_heads = 2
intermediate_size = 32
patch_size = 8
[data]
name = "leaves"
images = 60
image_size = 16
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
  std::unique_ptr<comm::World> world = comm::World::start(comm::LaunchInfo{}, {.device = "cpu"});
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

/// Runs `body`, and returns what it printed.
template <class Body>
std::string shown_by(Body&& body) {
  testing::internal::CaptureStdout();
  body();
  return testing::internal::GetCapturedStdout();
}

TEST(Trainer, IsTheCommandsTraining) {
  const Folder folder;
  const Program program;
  shown_by([&] {
    auto root = config::parse_text(kFile, "a.toml");
    config::apply_override(root, "run.dir=" + folder.path("file"));
    auto prepared = prepare(from_table(std::move(root), builtin_kinds()), program.world->info(), "", Log(1));
    auto run_folder = open_run(prepared);
    run_training(std::move(prepared), *program.world, std::move(run_folder), {});
    Trainer(*program.world, Program::arguments(folder.path("program")), program.inputs()).train();
  });
  EXPECT_EQ(checkpoint::read_file(folder.path("file/model/model.safetensors")),
            checkpoint::read_file(folder.path("program/model/model.safetensors")));
}

/// Records when a run evaluates and saves.
struct Events : RunCallback {
  std::vector<std::string> all;
  std::vector<double> losses;
  void on_evaluate(RunContext& run, const Evaluation& evaluation) override {
    all.push_back(fmt::format("eval{}", run.state.at.global_step));
    losses.push_back(evaluation.result.loss);
  }
  void on_save(RunContext& run, const std::string& /*checkpoint*/) override {
    all.push_back(fmt::format("save{}", run.state.at.global_step));
  }
};

TEST(Trainer, EvaluatesAndSavesByItsStrategies) {
  const struct {
    Strategy eval, save;
    const char* events;
  } cases[]{{Strategy::no, Strategy::no, ""},
            {Strategy::epoch, Strategy::no, "eval6 eval12"},
            {Strategy::steps, Strategy::epoch, "eval4 save6 eval8 eval12 save12"},
            {Strategy::no, Strategy::steps, "save5 save10 save12"}};
  const Program program;
  for (const auto& c : cases) {
    const Folder folder;
    const auto events = std::make_shared<Events>();
    auto arguments = Program::arguments(folder.path("run"));
    arguments.eval_strategy = c.eval;
    arguments.eval_steps = 4;
    arguments.save_strategy = c.save;
    arguments.save_steps = 5;
    shown_by([&] { Trainer(*program.world, arguments, program.inputs({events})).train(); });
    EXPECT_EQ(fmt::format("{}", fmt::join(events->all, " ")), c.events);
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

TEST(Trainer, StopsEarlyAndHasTheBestWeights) {
  const Folder folder;
  const Program program;
  auto arguments = Program::arguments(folder.path("run"));
  arguments.num_train_epochs = 6;
  arguments.learning_rate = 3;  // the loss grows
  arguments.load_best_model_at_end = true;
  arguments.metric_for_best_model = "loss";
  arguments.early_stopping_patience = 2;
  const auto events = std::make_shared<Events>();
  double loss = 0;
  RunResult result;
  shown_by([&] {
    Trainer trainer(*program.world, arguments, program.inputs({events}));
    result = trainer.train();
    loss = trainer.evaluate().loss;
  });
  ASSERT_EQ(result.stopped_by, "train.patience");
  const auto best = std::min_element(events->losses.begin(), events->losses.end());
  EXPECT_EQ(events->losses.end() - best, 3);
  EXPECT_DOUBLE_EQ(loss, *best);
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
  EXPECT_EQ(checkpoint::read_file(folder.path("straight/model/model.safetensors")),
            checkpoint::read_file(folder.path("stopped/model/model.safetensors")));
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
