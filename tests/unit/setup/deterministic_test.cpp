// run.deterministic: what it sets, what it refuses, and that CPU ranks need nothing of it.
#include "core/setup/deterministic.h"

#include <ATen/Context.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <optional>

#include "core/base/error.h"
#include "core/base/files/files.h"
#include "tests/unit/datasets/folder.h"
#include "tests/unit/train/program.h"

namespace trireme::train {
namespace {

using data::testing_tools::Folder;
using testing_tools::kFiveSteps;
using testing_tools::setup_of;
using testing_tools::shown_by;
using testing_tools::train_small;

constexpr const char* kVariable = "CUBLAS_WORKSPACE_CONFIG";

/// What a run sets in this process is as before after each test.
class Deterministic : public testing::Test {
 protected:
  void SetUp() override {
    if (const char* set = std::getenv(kVariable)) before_ = set;
    unsetenv(kVariable);
  }
  void TearDown() override {
    at::globalContext().setDeterministicAlgorithms(false, false);
    at::globalContext().setDeterministicCuDNN(false);
    unsetenv(kVariable);
    if (before_) setenv(kVariable, before_->c_str(), 1);
  }
  [[nodiscard]] std::vector<std::string> keys(const std::string& name, bool on) const {
    return {"run.dir=" + folder_.path(name), std::string("run.deterministic=") + (on ? "true" : "false"),
            "model.dropout=0.1", "run.keep_checkpoints=0"};
  }
  [[nodiscard]] std::string trained(const std::string& name, bool on) const {
    train_small(setup_of(kFiveSteps, keys(name, on)));
    return read_file(folder_.path(name) + "/model/model.safetensors");
  }
  Folder folder_;
  std::optional<std::string> before_;
};

TEST_F(Deterministic, IsSetByARun) {
  const auto& context = at::globalContext();
  const auto plain = trained("plain", false);
  EXPECT_FALSE(context.deterministicAlgorithms());
  EXPECT_EQ(std::getenv(kVariable), nullptr);
  EXPECT_TRUE(trained("repeat", false) == plain) << "a CPU rank has computed something else";
  at::globalContext().setBenchmarkCuDNN(true);
  EXPECT_TRUE(trained("deterministic", true) == plain) << "the key has changed the numbers of a CPU rank";
  EXPECT_TRUE(context.deterministicAlgorithms());
  EXPECT_FALSE(context.deterministicAlgorithmsWarnOnly());
  EXPECT_TRUE(context.deterministicCuDNN());
  EXPECT_FALSE(context.benchmarkCuDNN());
  EXPECT_STREQ(std::getenv(kVariable), ":4096:8");
}

/// An operation without a deterministic algorithm.
void put() { at::zeros({4}).put_(at::zeros({2}, at::kLong), at::zeros({2}), /*accumulate=*/false); }

/// An extension's callback with an operation that has no deterministic algorithm, on CPUs either.
struct Puts : RunCallback {
  void on_step_begin(RunContext& /*run*/) override { put(); }
};

TEST_F(Deterministic, NamesAnOperationWithoutSuchAnAlgorithm) {
  train_small(setup_of(kFiveSteps, keys("plain", false)), {.callbacks = {std::make_shared<Puts>()}});
  try {
    train_small(setup_of(kFiveSteps, keys("refused", true)), {.callbacks = {std::make_shared<Puts>()}});
    FAIL() << "the operation was accepted";
  } catch (const ConfigError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("run.deterministic"), std::string::npos) << text;
    EXPECT_NE(text.find("no deterministic algorithm for the operation put_ on this device"), std::string::npos) << text;
  }
}

/// Expects that `body` is refused because of put().
void expect_refused(const std::function<void()>& body) {
  try {
    shown_by(body);
    ADD_FAILURE() << "the operation was accepted";
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("no deterministic algorithm for the operation put_ on this device"),
              std::string::npos)
        << error.what();
  }
}

TEST_F(Deterministic, IsAnArgumentOfAProgram) {
  const Folder folder;
  const testing_tools::Program program;
  for (const bool asked : {false, true}) {
    auto arguments = testing_tools::Program::arguments(folder.path(asked ? "deterministic" : "plain"));
    arguments.deterministic = asked;
    auto inputs = program.inputs();
    inputs.metrics = {{{.name = "put", .label = "put"}, [](const nn::Tensors&, const data::Batch& batch) {
                         put();
                         const auto size = at::full({}, static_cast<double>(batch.size()), at::kDouble);
                         return MetricSums{size, size};
                       }}};
    Trainer trainer(*program.world, arguments, inputs);
    EXPECT_EQ(at::globalContext().deterministicAlgorithms(), asked);
    if (asked)
      expect_refused([&] { trainer.evaluate(); });
    else
      EXPECT_NO_THROW(trainer.evaluate());
  }
}

TEST_F(Deterministic, HoldsForPredictionsToo) {
  expect_refused([&] {
    auto run = setup_of(kFiveSteps, keys("run", true));
    const auto world = comm::World::start(LaunchInfo{}, {.device = "cpu"});
    run_prediction(std::move(run), *world, [](const at::Tensor&, const at::Tensor&) { put(); });
  });
}

TEST_F(Deterministic, OtherErrorsStayAsTheyAre) {
  const auto config = setup_of(kFiveSteps, keys("run", true)).config;
  EXPECT_THROW(with_deterministic_remedy(config, [] { TORCH_CHECK(false, "another error"); }), c10::Error);
}

TEST_F(Deterministic, RefusesWorkspacesWithWhichProductsDiffer) {
  const auto config = setup_of(kFiveSteps, keys("run", true)).config;
  for (const auto* fine : {":4096:8", ":16:8"}) {
    setenv(kVariable, fine, 1);
    EXPECT_NO_THROW(make_deterministic(config, /*cuda=*/true));
    EXPECT_STREQ(std::getenv(kVariable), fine);
  }
  setenv(kVariable, ":0:0", 1);
  EXPECT_NO_THROW(make_deterministic(config, /*cuda=*/false));
  try {
    make_deterministic(config, /*cuda=*/true);
    FAIL() << "the variable was accepted";
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("CUBLAS_WORKSPACE_CONFIG=\":0:0\""), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("set it to :4096:8 or :16:8"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace trireme::train
