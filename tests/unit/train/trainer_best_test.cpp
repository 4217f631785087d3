// The best weights of a Trainer's run: which they are, and whether the model has them.
#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <optional>

#include "core/train/trainer.h"
#include "tests/unit/data/folder.h"
#include "tests/unit/train/program.h"

namespace trireme::train {
namespace {

using data::testing_tools::Folder;
using testing_tools::Events;
using testing_tools::kFile;
using testing_tools::prepared;
using testing_tools::Program;
using testing_tools::shown_by;

/// Sets the metric "score" of a program by the epoch.
struct Scores : RunCallback {
  std::vector<double> by_epoch;
  double now = 0;

  explicit Scores(std::vector<double> scores) : by_epoch(std::move(scores)) {}
  void on_step_begin(RunContext& run) override { now = by_epoch.at(static_cast<std::size_t>(run.state.at.epoch)); }
};

/// A training of so many epochs with these scores, of which the highest is the best, from the newest checkpoint.
struct Scored {
  RunResult result;
  std::shared_ptr<Events> events = std::make_shared<Events>();
  double loss_after = 0;  ///< of the model as the training leaves it

  Scored(const Program& program, const std::string& dir, std::int64_t epochs, bool keeps_best,
         const std::vector<double>& by_epoch, std::optional<std::int64_t> patience = {}) {
    auto arguments = Program::arguments(dir);
    arguments.num_train_epochs = epochs;
    arguments.load_best_model_at_end = keeps_best;
    arguments.metric_for_best_model = "score";
    arguments.early_stopping_patience = patience;
    arguments.resume_from_checkpoint = std::filesystem::exists(dir) ? "must" : "";
    const auto scores = std::make_shared<Scores>(by_epoch);
    auto inputs = program.inputs({events, scores});
    inputs.test = program.data.test;
    inputs.metrics = {{{.name = "score", .label = "score"}, [scores](const nn::Tensors&, const data::Batch& batch) {
                         const auto size = at::full({}, static_cast<double>(batch.size()), at::kDouble);
                         return MetricSums{size * scores->now, size};
                       }}};
    shown_by([&] {
      Trainer trainer(*program.world, arguments, inputs);
      result = trainer.train();
      loss_after = trainer.evaluate().loss;
    });
  }
};

TEST(Trainer, StopsEarlyAndHasTheBestWeights) {
  const Folder folder;
  const Program program;
  const Scored run(program, folder.path("run"), 6, true, {0.1, 0.9, 0.5, 0.9, 1, 1}, 2);
  EXPECT_EQ(run.result.stopped_by, "train.patience");
  EXPECT_EQ(run.result.state.last.epoch, 4);
  EXPECT_EQ(run.result.state.best.epoch, 2) << "the first of equally good ones";
  EXPECT_DOUBLE_EQ(run.loss_after, run.events->losses.at(1));
}

// A run that does not keep the best weights has nothing to do with those that the run before it kept.
TEST(Trainer, ResumesWithoutTheBestWeights) {
  const Folder folder;
  const Program program;
  const std::vector<double> scores{0.1, 0.5, 0.9, 0.2};
  const auto dir = folder.path("run"), checkpoints = dir + "/checkpoints/";
  const Scored kept(program, dir, 2, true, scores);
  EXPECT_EQ(kept.result.state.best.epoch, 2);
  EXPECT_TRUE(std::filesystem::exists(checkpoints + "step-00000012/best.safetensors"));
  const Scored resumed(program, dir, 4, false, scores);
  EXPECT_EQ(resumed.result.resumed_at, 12);
  EXPECT_EQ(resumed.result.state.best.epoch, 3);
  EXPECT_FALSE(resumed.result.best_test) << "of the weights of epoch 2";
  EXPECT_DOUBLE_EQ(resumed.loss_after, resumed.events->losses.at(1)) << "not of the last weights";
  EXPECT_FALSE(std::filesystem::exists(checkpoints + "step-00000024/best.safetensors"));
}

TEST(Trainer, AMetricThatIsNotFiniteIsSavedAndNeverTheBest) {
  const Folder folder;
  const Program program;
  const std::vector<double> scores{NAN, 0.5, INFINITY, 0.2};
  EXPECT_EQ(Scored(program, folder.path("run"), 1, true, scores).result.state.best.epoch, 1) << "the only one so far";
  const Scored resumed(program, folder.path("run"), 4, true, scores);
  EXPECT_EQ(resumed.result.resumed_at, 6);
  EXPECT_EQ(resumed.result.state.best.epoch, 2);
  EXPECT_DOUBLE_EQ(resumed.loss_after, resumed.events->losses.at(0)) << "not of the best weights";
}

// The best weights are scored on the test split, too.
TEST(Trainer, KeepsTheLastWeights) {
  const Folder folder;
  const Program program;
  auto run = prepared(kFile, {"run.dir=" + folder.path("run"), "train.best=validation.loss", "schedule.name=multi_step",
                              "schedule.milestones=[6]", "schedule.gamma=500"});
  const auto test = run.data.test;
  RunResult result;
  double loss = 0;
  shown_by([&] {
    Trainer trainer(std::move(run), *program.world, nullptr, {});
    result = trainer.train();
    loss = trainer.evaluate(test).loss;
  });
  ASSERT_TRUE(result.best_test);
  EXPECT_NE(result.best_test->loss, result.test->loss);
  EXPECT_EQ(loss, result.test->loss);
}

}  // namespace
}  // namespace trireme::train
