// A program's Trainer gives the same training, evaluation and predictions in every layout, with a loss, a collator and
// a metric of its own.
#include "core/train/trainer.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "core/base/error.h"
#include "core/comm/host_values.h"
#include "core/data/dataset_wrapper.h"
#include "core/train/callbacks.h"
#include "tasks/tasks.h"
#include "tests/parity/layout.h"
#include "tests/parity/reference.h"
#include "tests/parity/small_vit.h"
#include "tests/ranks/world.h"

namespace trireme::tests {
namespace {

namespace fs = std::filesystem;
using train::Trainer;

constexpr std::int64_t kGlobal = 8, kMicro = 2, kSamples = 19;

/// Records what a program would show.
struct Shown : train::RunCallback {
  std::vector<double> train_losses, validation_losses, wrong;
  void on_epoch_end(train::RunContext& /*run*/, const train::EpochEnd& epoch) override {
    train_losses.push_back(epoch.train_loss);
  }
  void on_evaluate(train::RunContext& /*run*/, const train::Evaluation& evaluation) override {
    validation_losses.push_back(evaluation.result.loss);
    wrong.push_back(evaluation.result.value("wrong"));
  }
};

/// The data set's own batch, with images of twice the values.
data::Sample doubled(data::Dataset& data, std::vector<data::Sample> samples, const std::vector<std::int64_t>& indices) {
  auto batch = data.collate(std::move(samples), indices);
  for (auto& [name, input] : batch.inputs) input = 2 * input;
  return batch;
}

MetricSums wrong_of(const nn::Tensors& outputs, const data::Batch& batch) {
  const auto wrong = at::argmax(outputs[0], -1).ne(batch.targets[nn::kLabels]).to(at::kDouble).sum();
  return {wrong, at::full_like(wrong, static_cast<double>(batch.size()))};
}

struct TrainerLayout {
  const char* plugin;
  PluginOptions options;
  int dp = 1;  ///< on this test's ranks
};

std::vector<TrainerLayout> layouts_on(int ranks) {
  std::vector<TrainerLayout> all{{"torch_ddp", {}, ranks},
                                 {"low_level_zero", {{"stage", std::int64_t{2}}}, ranks},
                                 {"gemini", {}, ranks},
                                 {"hybrid_parallel", {{"zero_stage", std::int64_t{1}}}, ranks}};
  if (ranks % 2 == 0) {
    all.push_back({"hybrid_parallel", {{"tp_size", std::int64_t{2}}}, ranks / 2});
    all.push_back({"hybrid_parallel", {{"pp_size", std::int64_t{2}}}, ranks / 2});
  }
  return all;
}

struct TrainedAs {
  Shown shown;
  train::Predictions predictions;
  train::EvalResult evaluated;
  Named weights;
};

/// `penalty`: for large logits.
TrainedAs train_as(comm::World& world, const TrainerLayout& layout, const std::string& dir, double penalty) {
  const auto data = make_data({.name = "trainer", .samples = kSamples});
  const SmallVit vit(*data);
  const auto shown = std::make_shared<Shown>();
  const auto task = tasks::classification();
  decltype(train::TrainerInputs::loss) loss;
  if (penalty > 0)
    loss = [&](const nn::Tensors& outputs, const data::Batch& batch, const Task::LossOptions& options) {
      return task->loss(outputs, batch, options) + penalty * outputs[0].square().sum();
    };
  Trainer trainer(world,
                  {.output_dir = dir,
                   .plugin = layout.plugin,
                   .plugin_options = layout.options,
                   .per_device_train_batch_size = kMicro,
                   .per_device_eval_batch_size = 3,
                   .gradient_accumulation_steps = kGlobal / kMicro / layout.dp,
                   .num_train_epochs = 2,
                   .precision = "fp64",
                   .learning_rate = 1e-3,
                   .weight_decay = 0.1,
                   .save_strategy = train::Strategy::no,
                   .seed = static_cast<std::int64_t>(kSeed)},
                  {.model = [&] { return vit.source(); },
                   .task = task,
                   .loss = loss,
                   .train = data,
                   .eval = data,
                   .data_collator =
                       [data](std::vector<data::Sample> samples, const std::vector<std::int64_t>& indices) {
                         return doubled(*data, std::move(samples), indices);
                       },
                   .metrics = {{{.name = "wrong", .label = "wrong", .higher_is_better = false}, wrong_of}},
                   .callbacks = {shown}});
  testing::internal::CaptureStdout();
  const auto result = trainer.train();
  testing::internal::GetCapturedStdout();
  EXPECT_EQ(result.state.at.global_step, 6);
  TrainedAs out{.shown = *shown, .predictions = trainer.predict(data), .evaluated = trainer.evaluate(), .weights = {}};
  out.weights = gathered(trainer.boosted().model->weights(), trainer.boosted().booster->mesh());
  return out;
}

TEST(TrainerLayouts, GiveTheSameTraining) {
  const auto dir = fs::temp_directory_path() / fmt::format("trireme_trainer_{}", getpid());
  LaunchInfo alone;
  const auto own_world = comm::World::start(alone, {.device = "cpu"});
  const auto want = train_as(*own_world, {"torch_ddp", {}, 1}, dir / "alone", 0.1);
  const auto plain = train_as(*own_world, {"torch_ddp", {}, 1}, dir / "plain", 0);
  EXPECT_GT(std::abs(plain.shown.train_losses[1] / want.shown.train_losses[1] - 1), 1e-5)
      << "the penalty has no effect";
  int number = 0;
  for (const auto& layout : layouts_on(world().size())) {
    SCOPED_TRACE(fmt::format("{} {}", layout.plugin, number));
    const auto got = train_as(world(), layout, dir / std::to_string(number++), 0.1);
    for (std::size_t epoch = 0; epoch < 2; ++epoch) {
      EXPECT_NEAR(got.shown.train_losses[epoch], want.shown.train_losses[epoch], 1e-9);
      EXPECT_NEAR(got.shown.validation_losses[epoch], want.shown.validation_losses[epoch], 1e-9);
      EXPECT_DOUBLE_EQ(got.shown.wrong[epoch], want.shown.wrong[epoch]);
    }
    EXPECT_TRUE(got.predictions.samples.equal(want.predictions.samples));
    EXPECT_TRUE(got.predictions.targets[nn::kLabels].equal(want.predictions.targets[nn::kLabels]));
    ASSERT_EQ(got.predictions.outputs[0].sizes(), want.predictions.outputs[0].sizes());
    EXPECT_TRUE(got.predictions.outputs[0].allclose(want.predictions.outputs[0], 1e-9, 1e-9));
    EXPECT_NEAR(got.evaluated.loss, want.shown.validation_losses[1], 1e-9);
    const auto [off, name] = distance(got.weights, want.weights, 1e-9);
    EXPECT_LE(off, 1) << name;
  }
  std::error_code ignored;
  fs::remove_all(dir, ignored);
}

/// Computes longer on one rank.
struct Slow : train::RunCallback {
  std::chrono::milliseconds by{120};  ///< more than a rank waits for a core
  void on_step_end(train::RunContext& run, const train::StepEnd& /*step*/) override {
    if (run.world.rank() == 1) std::this_thread::sleep_for(by);
  }
};

TEST(TrainerLayoutsTime, ShowsTheRankThatTheOthersWaitFor) {
  if (world().size() == 1) GTEST_SKIP() << "needs ranks that wait for each other";
  const auto dir = shared_path("times");
  const auto data = make_data({.name = "trainer", .samples = kSamples});
  const SmallVit vit(*data);
  // rank_times() is asked first, so that the other's sleep is within the time of its next step.
  Trainer trainer(world(), {.output_dir = dir, .per_device_train_batch_size = kMicro, .num_train_epochs = 2},
                  {.model = [&] { return vit.source(); },
                   .task = tasks::classification(),
                   .train = data,
                   .callbacks = {train::rank_times(2), std::make_shared<Slow>()}});
  testing::internal::CaptureStdout();
  trainer.train();
  const auto shown = testing::internal::GetCapturedStdout();
  if (world().rank() != 0) return;
  std::ifstream lines(dir + "/metrics.jsonl");
  int events = 0;
  for (std::string line; std::getline(lines, line);) {
    const auto json = nlohmann::json::parse(line);
    if (json.value("event", "") != "rank_times" || ++events == 1) continue;  // the first steps warm up
    EXPECT_EQ(json.at("compute").at("rank"), 1) << line;
    // At the start of an epoch, the sleep belongs to no step.
    EXPECT_GE(json.at("compute").at("most"), 0.06) << line;
    EXPECT_NE(json.at("communication").at("rank"), 1) << line;
    EXPECT_GE(json.at("communication").at("most"), 0.03) << line;
  }
  EXPECT_GE(events, 2);
  EXPECT_NE(shown.find("ranks in 2 steps up to 2: data "), std::string::npos) << shown;
  fs::remove_all(dir);
}

/// Records how long each step waited in communication.
struct Waits : train::RunCallback {
  std::vector<double> seconds;
  void on_step_end(train::RunContext& /*run*/, const train::StepEnd& step) override {
    seconds.push_back(step.communication);
  }
};

// Rank 0 waits for the slow rank in each step, but for those after which it has waited in a part of a save: what each
// rank has written is gathered then.
TEST(TrainerLayoutsTime, ASaveBesideTheStepsIsNoPartOfIt) {
  if (world().size() == 1) GTEST_SKIP() << "needs ranks that wait for each other";
  TRIREME_ONLY_ON_CPU("a GPU's host does not wait");
  const auto dir = shared_path("waits");
  const auto data = make_data({.name = "trainer", .samples = 64});
  const SmallVit vit(*data);
  const auto waits = std::make_shared<Waits>();
  constexpr std::int64_t kSaveSteps = 5;
  Trainer trainer(world(),
                  {.output_dir = dir,
                   .per_device_train_batch_size = kMicro,
                   .num_train_epochs = 1,
                   .save_strategy = train::Strategy::steps,
                   .save_steps = kSaveSteps,
                   .async_save = true},
                  {.model = [&] { return vit.source(); },
                   .task = tasks::classification(),
                   .train = data,
                   .callbacks = {waits, std::make_shared<Slow>()}});
  testing::internal::CaptureStdout();
  trainer.train();
  testing::internal::GetCapturedStdout();
  if (world().rank() != 0) return;
  ASSERT_GE(waits->seconds.size(), 8U);
  // At the start of the epoch, and after a save has begun, the sleep before belongs to no step.
  std::vector<double> others;
  for (std::size_t i = 0; i < waits->seconds.size(); ++i)
    if (i % kSaveSteps != 0) others.push_back(waits->seconds[i]);
  const auto waited = std::count_if(others.begin(), others.end(), [](double s) { return s > 0.08; });
  EXPECT_GE(waited, 3);
  EXPECT_LT(waited, std::ssize(others)) << fmt::format("{}", fmt::join(waits->seconds, " "));
  fs::remove_all(dir);
}

/// Another data set with a target whose shape is a different one in the batch of the first sample.
class UnevenTargets final : public data::DatasetWrapper {
 public:
  explicit UnevenTargets(std::shared_ptr<data::Dataset> of) : DatasetWrapper(std::move(of)) {}
  [[nodiscard]] nn::DataSpec spec() override {
    auto spec = around().spec();
    spec.targets.push_back({"uneven", at::kLong, {-1}});
    return spec;
  }
  [[nodiscard]] data::RowSamples* rows() override { return nullptr; }
  [[nodiscard]] data::Sample collate(std::vector<data::Sample> samples,
                                     const std::vector<std::int64_t>& indices) override {
    auto batch = around().collate(std::move(samples), indices);
    batch.targets.set("uneven",
                      at::zeros({batch.targets[nn::kLabels].size(0), indices.front() == 0 ? 2 : 1}, at::kLong));
    return batch;
  }
};

// Shapes that differ on one rank are refused on every rank, which can then go on.
TEST(TrainerLayouts, RefuseAPredictionOfSeveralShapesTogether) {
  const auto dir = fs::temp_directory_path() / fmt::format("trireme_predict_{}", getpid());
  const auto data = make_data({.name = "trainer", .samples = kSamples});
  const SmallVit vit(*data);
  Trainer trainer(
      world(), {.output_dir = dir, .per_device_train_batch_size = kMicro, .per_device_eval_batch_size = kMicro},
      {.model = [&] { return vit.source(); }, .task = tasks::classification(), .train = data, .eval = data});
  try {
    trainer.predict(std::make_shared<UnevenTargets>(data));
    ADD_FAILURE() << "the shapes were accepted";
  } catch (const DataError& error) {
    EXPECT_NE(std::string(error.what()).find("target uneven has different shapes"), std::string::npos) << error.what();
  }
  EXPECT_EQ(trainer.predict(data).samples.size(0), kSamples);
  std::error_code ignored;
  fs::remove_all(dir, ignored);
}

}  // namespace
}  // namespace trireme::tests
