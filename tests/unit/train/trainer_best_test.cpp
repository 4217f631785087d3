// The best weights of a Trainer's run: which they are, and whether the model has them.
#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>

#include "core/train/trainer.h"
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

/// The lines of a text.
std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> out;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) out.push_back(line);
  return out;
}

// A checkpoint with intact best weights is preferred, because its result is that of a run without damage. If there is
// none, only the best weights are lost. A run without best weights does not mind.
TEST(Trainer, DamagedBestWeightsCostNoMoreThanTheyMust) {
  const struct {
    const char* what;
    std::vector<std::string> damaged;  ///< checkpoints
    bool keeps_best;
    std::int64_t resumed_at, best_epoch;
    std::vector<std::string> says;  ///< the beginnings of the warnings, after the folder
  } rows[] = {
      {"those of the newest", {"step-00000012"}, true, 6, 3, {"step-00000012 skipped: "}},
      {"all",
       {"step-00000006", "step-00000012"},
       true,
       12,
       3,
       {"step-00000012: no checkpoint has intact best weights ("}},
      {"all, which nobody needs", {"step-00000006", "step-00000012"}, false, 12, 2, {}},
      {"none", {}, true, 12, 2, {}},
  };
  for (const auto& row : rows) {
    SCOPED_TRACE(row.what);
    const Folder folder;
    const Program program;
    const auto dir = folder.path("run");
    const Scored before(program, dir, 2, true, {0.1, 0.9});
    EXPECT_EQ(before.result.state.best.epoch, 2);
    for (const auto& name : row.damaged) {
      const auto best = dir + "/checkpoints/" + name + "/best.safetensors";
      std::fstream bytes(best, std::ios::in | std::ios::out | std::ios::binary);
      bytes.seekp(-1, std::ios::end);
      const char last = static_cast<char>(bytes.get() ^ 1);
      bytes.seekp(-1, std::ios::end);
      bytes.put(last);
    }
    testing::internal::CaptureStderr();
    const Scored after(program, dir, 4, row.keeps_best, {0.1, 0.2, 0.5, 0.4});
    const auto said = testing::internal::GetCapturedStderr();
    const auto lines = lines_of(said);
    EXPECT_EQ(after.result.resumed_at, row.resumed_at);
    EXPECT_EQ(after.result.state.best.epoch, row.best_epoch);
    ASSERT_EQ(lines.size(), row.says.size()) << said;
    for (std::size_t i = 0; i < lines.size(); ++i) EXPECT_NE(lines[i].find(row.says[i]), std::string::npos) << said;
    const bool is_lost = row.damaged.size() == 2 && row.keeps_best;
    EXPECT_EQ(said.find("those of step 12 are lost") != std::string::npos, is_lost) << said;
  }
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
  auto run = setup_of(kFile, {"run.dir=" + folder.path("run"), "train.best=validation.loss", "schedule.name=multi_step",
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
