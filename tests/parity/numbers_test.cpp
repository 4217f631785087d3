// Steps whose loss or gradients are not finite, in every layout: what each train.on_nonfinite does, and what the report
// of a run that ends says.
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "core/base/error.h"
#include "core/comm/text.h"
#include "core/data/dataset_around.h"
#include "core/nn/block.h"
#include "core/train/trainer.h"
#include "models/registry.h"
#include "models/vit/vit.h"
#include "tasks/tasks.h"
#include "tests/mpi/world.h"
#include "tests/parity/layout.h"
#include "tests/parity/reference.h"

namespace trireme::tests {
namespace {

namespace fs = std::filesystem;
using train::Trainer;

constexpr std::int64_t kGlobal = 8, kMicro = 2, kSamples = 19, kEpochs = 2, kSteps = 6;
constexpr std::int64_t kBadSample = 7;
constexpr const char* kCopied = "vit.encoder.layer.1.layernorm_before.weight";
constexpr const char* kWeight = "vit.encoder.layer.1.intermediate.dense.weight";

/// What is wrong in a run.
struct Plant {
  enum Kind { nothing, sample, huge_sample, gradient, copied_gradient, weight, copy } kind = nothing;
  std::int64_t step = 2;  ///< of a gradient or weight, from 1: a full batch, so that every rank has samples
};

/// Samples of which one has a value that is not finite, or so large that the first encoder layer overflows.
class Spoilt final : public data::DatasetAround {
 public:
  Spoilt(std::shared_ptr<data::Dataset> of, double value) : DatasetAround(std::move(of)), value_(value) {}
  [[nodiscard]] data::RowSamples* rows() override { return nullptr; }
  [[nodiscard]] data::Sample collate(std::vector<data::Sample> samples,
                                     const std::vector<std::int64_t>& indices) override {
    auto batch = around().collate(std::move(samples), indices);
    for (auto& [name, input] : batch.inputs)
      for (std::size_t i = 0; i < indices.size() && !input.is_meta(); ++i)
        if (indices[i] == kBadSample) {
          input = input.to(at::kDouble);
          input.select(0, static_cast<std::int64_t>(i)).fill_(value_);
        }
    return batch;
  }

 private:
  double value_;
};

/// Plants what is wrong, and records what a run does.
class Planter final : public train::RunCallback {
 public:
  explicit Planter(Plant plant) : plant_(plant) {}
  std::vector<std::string> lines;
  std::vector<std::int64_t> changed;  ///< the steps that changed this rank's weights
  std::int64_t stop_at = 0;           ///< a step, when it is trained for the second time; 0: none
  int rank = -1;                      ///< that has the bad gradient

  void on_start(train::RunContext& run) override {
    before_ = copy_of(run);
    if (plant_.kind != Plant::gradient && plant_.kind != Plant::copied_gradient) return;
    // The last rank that holds the parameter.
    at::Tensor leaf;
    for (const auto& parameter : nn::declarations(run.boosted.model->module()))
      if (parameter.name == (plant_.kind == Plant::gradient ? kWeight : kCopied)) leaf = parameter.value;
    const auto all = comm::all_gather_text(world().group(), world().device(), leaf.defined() ? "has" : "");
    for (std::size_t r = 0; r < all.size(); ++r)
      if (!all[r].empty()) rank = static_cast<int>(r);
    if (rank == world().rank())
      leaf.register_hook([this, &run](const at::Tensor& grad) {
        // In the step itself and in its replay.
        const auto done = run.state.at.global_step;
        return done == plant_.step - 1 || (done == plant_.step && !trains_) ? grad * NAN : grad;
      });
  }
  void on_step_begin(train::RunContext& /*run*/) override { trains_ = true; }
  void on_step_end(train::RunContext& run, const train::StepEnd& /*step*/) override {
    trains_ = false;
    auto now = copy_of(run);
    for (std::size_t i = 0; i < now.size(); ++i)
      if (!at::equal(now[i], before_[i])) {
        changed.push_back(run.state.at.global_step);
        break;
      }
    before_ = std::move(now);
    if (run.state.at.global_step == stop_at && ++visits_ == 2) run.stopped_by = "the test";
    if (plant_.kind == Plant::copy && run.state.at.global_step == plant_.step) change_a_copy(run);
    if (plant_.kind != Plant::weight || run.state.at.global_step != plant_.step - 1 || planted_) return;
    planted_ = true;
    const at::NoGradGuard no_grad;
    for (const auto& [placement, value] : run.boosted.model->weights())
      if (placement.name == kWeight && value.numel() > 0) value.detach().view(-1)[0].fill_(NAN);
    run.boosted.model->weights_changed();
    before_ = copy_of(run);
  }
  void on_message(train::RunContext& /*run*/, const std::string& line) override { lines.push_back(line); }

 private:
  /// Changes one element by its last bit on the last rank that has the parameter, or its master if that alone is in
  /// memory.
  void change_a_copy(train::RunContext& run) {
    at::Tensor value;
    for (const auto& parameter : nn::declarations(run.boosted.model->module()))
      if (parameter.name == kCopied) value = parameter.value;
    const auto all = comm::all_gather_text(world().group(), world().device(), value.defined() ? "has" : "");
    for (std::size_t r = 0; r < all.size(); ++r)
      if (!all[r].empty()) rank = static_cast<int>(r);
    if (rank != world().rank() || value.storage().nbytes() == 0) return;
    value.detach().view(-1)[5].mul_(1 + std::numeric_limits<double>::epsilon());
  }
  static std::vector<at::Tensor> copy_of(train::RunContext& run) {
    std::vector<at::Tensor> out;
    for (const auto& slice : run.boosted.model->weights()) out.push_back(slice.value.detach().nan_to_num().clone());
    return out;
  }
  Plant plant_;
  bool planted_ = false, trains_ = false;
  int visits_ = 0;
  std::vector<at::Tensor> before_;
};

struct Layout {
  std::string name;
  const char* plugin;
  PluginOptions options;
  int dp = 1;  ///< on this test's ranks
};

std::vector<Layout> layouts_on(int ranks) {
  const auto key = [](const char* name, std::int64_t value) {
    return std::pair<const std::string, FieldValue>{name, value};
  };
  std::vector<Layout> all{{"ddp", "torch_ddp", {}, ranks},
                          {"zero1", "low_level_zero", {key("stage", 1)}, ranks},
                          {"zero2", "low_level_zero", {key("stage", 2)}, ranks},
                          {"gemini", "gemini", {}, ranks},
                          {"hybrid", "hybrid_parallel", {key("zero_stage", 1)}, ranks}};
  if (ranks == 1) all.push_back({"replicas", "data_parallel", {key("replicas", 2)}, 1});
  if (ranks % 2 == 0) {
    all.push_back({"tp2", "hybrid_parallel", {key("tp_size", 2)}, ranks / 2});
    all.push_back({"pp2", "hybrid_parallel", {key("pp_size", 2)}, ranks / 2});
  }
  if (ranks == 4) {
    all.push_back({"pp2_zero1", "hybrid_parallel", {key("pp_size", 2), key("zero_stage", 1)}, ranks / 2});
    all.push_back({"tp2_pp2", "hybrid_parallel", {key("tp_size", 2), key("pp_size", 2)}, 1});
  }
  return all;
}

/// A small ViT with dropout for the samples of make_data().
class SmallVit {
 public:
  explicit SmallVit(data::Dataset& data) : kind_(models::all_models().at("vit")) {
    options_.hidden_size = 24;
    options_.num_layers = 2;
    options_.num_heads = 3;
    options_.intermediate_size = 48;
    options_.patch_size = 4;
    options_.dropout = 0.1;
    kind_->resolve(&options_, data.spec());
  }
  [[nodiscard]] ModelSource source() const {
    return {.model = kind_->make(&options_), .policy = kind_->policy(&options_)};
  }
  [[nodiscard]] std::shared_ptr<nn::Model> make() const { return kind_->make(&options_); }

 private:
  std::shared_ptr<const nn::ModelKind> kind_;
  models::vit::Options options_;
};

/// A run's folder, shared by the ranks and removed at the end.
class Folder {
 public:
  explicit Folder(comm::World& ranks) : removes_(ranks.rank() == 0) {
    static int number = 0;
    const auto mine = (fs::temp_directory_path() / fmt::format("trireme_numbers_{}_{}", getpid(), number++)).string();
    path_ = comm::broadcast_text(ranks.group(), ranks.device(), mine);
  }
  ~Folder() {
    std::error_code ignored;
    if (removes_) fs::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  [[nodiscard]] const std::string& path() const { return path_; }
  /// The events of a kind in metrics.jsonl.
  [[nodiscard]] std::vector<nlohmann::json> events(const std::string& kind) const {
    std::vector<nlohmann::json> out;
    std::ifstream lines(path_ + "/metrics.jsonl");
    for (std::string line; std::getline(lines, line);)
      if (auto json = nlohmann::json::parse(line); json.value("event", "") == kind) out.push_back(std::move(json));
    return out;
  }

 private:
  std::string path_;
  bool removes_;
};

struct Ran {
  train::TrainerState state;
  Named weights;
  std::string error;  ///< of a run that ended with NonFiniteError, else ""
  std::shared_ptr<Planter> seen;
};

struct Asked {
  Plant plant{};
  std::string policy = "stop";
  std::int64_t most = 10, save_steps = 2, stop_at = 0;
  bool resume = false;
  double spike = 0;
  std::string on_spike = "warn";
  std::int64_t compare_every = 0;
};

Ran run_as(comm::World& ranks, const Layout& layout, const Asked& asked, const std::string& dir) {
  const auto clean = make_data({.name = "numbers", .samples = kSamples});
  std::shared_ptr<data::Dataset> data = clean;
  if (asked.plant.kind == Plant::sample) data = std::make_shared<Spoilt>(clean, NAN);
  if (asked.plant.kind == Plant::huge_sample)
    data = std::make_shared<Spoilt>(clean, std::numeric_limits<double>::max());
  const SmallVit vit(*clean);
  Ran ran;
  ran.seen = std::make_shared<Planter>(asked.plant);
  ran.seen->stop_at = asked.stop_at;
  Trainer trainer(
      ranks,
      {.output_dir = dir,
       .plugin = layout.plugin,
       .plugin_options = layout.options,
       .per_device_train_batch_size = kMicro,
       .gradient_accumulation_steps = kGlobal / kMicro / layout.dp,
       .num_train_epochs = kEpochs,
       .precision = "fp64",
       .learning_rate = 1e-3,
       .weight_decay = 0.1,
       .eval_strategy = train::Strategy::no,
       .save_strategy = train::Strategy::steps,
       .save_steps = asked.save_steps,
       .resume_from_checkpoint = asked.resume ? "auto" : "",
       .on_nonfinite = asked.policy,
       .max_nonfinite = asked.most,
       .loss_spike = asked.spike,
       .on_loss_spike = asked.on_spike,
       .compare_replicas_every = asked.compare_every,
       .seed = static_cast<std::int64_t>(kSeed)},
      {.model = [&] { return vit.source(); }, .task = tasks::classification(), .train = data, .callbacks = {ran.seen}});
  testing::internal::CaptureStdout();
  try {
    ran.state = trainer.train().state;
    ran.weights = gathered(trainer.boosted().model->weights(), trainer.booster().mesh());
  } catch (const NonFiniteError& error) {
    ran.error = error.what();
  }
  testing::internal::GetCapturedStdout();
  return ran;
}

/// Trains on clean data in this process, without the steps in `without`: they count, and change nothing.
Named trained_without(const std::set<std::int64_t>& without) {
  const auto data = make_data({.name = "numbers", .samples = kSamples});
  const SmallVit vit(*data);
  static const auto alone = comm::World::start(comm::LaunchInfo{}, {.device = "cpu"});
  optim::OptimizerOptions optimizer{.lr = 1e-3, .weight_decay = 0.1};
  Booster booster(*alone, load_plugin("torch_ddp"),
                  {.train = {.epochs = kEpochs, .global_batch = kGlobal, .precision = "fp64", .max_norm = 1},
                   .optimizer = optimizer,
                   .lr_schedule = {.curve = optim::linear()},
                   .seed = kSeed});
  auto run = booster.boost({.source = vit.source(), .task = tasks::classification(), .data = data});
  for (std::int64_t epoch = 0; epoch < kEpochs; ++epoch) {
    run.loader->start_epoch(epoch);
    while (auto batch = run.loader->next())
      if (without.contains(run.step + 1))
        ++run.step;
      else
        booster.train_step(run, *batch);
  }
  Named out;
  for (const auto& [placement, value] : run.model->weights()) out[placement.name] = value.detach().clone();
  return out;
}

/// The steps (from 1) whose batch has the bad sample: one in each epoch.
std::set<std::int64_t> bad_steps() {
  const auto data = make_data({.name = "numbers", .samples = kSamples});
  data::LoaderOptions options;
  options.global_batch = kGlobal;
  options.micro_batch = kGlobal;
  options.shuffle = true;
  options.seed = kSeed;
  options.dtype = at::kDouble;
  data::Loader loader(data, options);
  std::set<std::int64_t> steps;
  for (std::int64_t epoch = 0, step = 0; epoch < kEpochs; ++epoch) {
    loader.start_epoch(epoch);
    while (auto batch = loader.next()) {
      ++step;
      for (const auto& micro : batch->micro)
        if (micro.sample_ids.eq(kBadSample).any().item<bool>()) steps.insert(step);
    }
  }
  return steps;
}

class Numbers : public testing::Test {
 protected:
  const std::vector<Layout> layouts_ = layouts_on(world().size());
  const std::set<std::int64_t> bad_ = bad_steps();
};

TEST_F(Numbers, ABadSampleIsInOneStepOfEachEpoch) {
  ASSERT_EQ(bad_.size(), 2U);
  EXPECT_LE(*bad_.begin(), 3);
  EXPECT_GE(*bad_.rbegin(), 4);
}

TEST_F(Numbers, StopNamesTheFirstBadTensor) {
  struct Row {
    Plant::Kind kind;
    std::vector<std::string> says;
  };
  const std::vector<Row> rows{
      {Plant::sample,
       {"in a replay of the step: the input \"pixel_values\" on rank", "sample 7 alone gives it",
        "Check sample 7 of the training data"}},
      {Plant::huge_sample,
       {"in a replay of the step: the output of block 1 (vit.encoder.layer.0) on rank", "sample 7 alone gives it"}},
      {Plant::gradient,
       {fmt::format("in a replay of the step: the gradient of \"{}\" on rank ", kWeight), "in microbatch 0 (sample"}},
      {Plant::copied_gradient, {fmt::format("in a replay of the step: the gradient of \"{}\" on rank ", kCopied)}},
      {Plant::weight, {fmt::format("the weight \"{}\" on rank", kWeight), "before the step"}}};
  for (const auto& layout : layouts_)
    for (const auto& row : rows) {
      SCOPED_TRACE(fmt::format("{} {}", layout.name, static_cast<int>(row.kind)));
      const Folder folder(world());
      const auto ran = run_as(world(), layout, {.plant = {row.kind}}, folder.path());
      const auto step = row.kind == Plant::sample || row.kind == Plant::huge_sample ? *bad_.begin() : 2;
      EXPECT_EQ(ran.error.find(fmt::format("step {}: the loss is ", step)), 0U) << ran.error;
      EXPECT_NE(ran.error.find("the step was not applied"), std::string::npos) << ran.error;
      for (const auto& part : row.says) EXPECT_NE(ran.error.find(part), std::string::npos) << ran.error;
      if (ran.seen->rank >= 0) {
        EXPECT_NE(ran.error.find(fmt::format("on rank {},", ran.seen->rank)), std::string::npos) << ran.error;
      }
      // One message: each rank has the same.
      EXPECT_EQ(comm::broadcast_text(world().group(), world().device(), ran.error), ran.error);
      // Nothing has used the numbers.
      for (const auto changed : ran.seen->changed) EXPECT_LT(changed, step);
    }
}

TEST_F(Numbers, SkipLeavesTheStepOut) {
  for (const auto kind : {Plant::sample, Plant::gradient, Plant::copied_gradient}) {
    const auto steps = kind == Plant::sample ? bad_ : std::set<std::int64_t>{2};
    const auto want = trained_without(steps);
    for (const auto& layout : layouts_) {
      SCOPED_TRACE(fmt::format("{} {}", layout.name, static_cast<int>(kind)));
      const Folder folder(world());
      const auto ran = run_as(world(), layout, {.plant = {kind}, .policy = "skip"}, folder.path());
      ASSERT_EQ(ran.error, "");
      EXPECT_EQ(ran.state.at.global_step, kSteps);
      EXPECT_EQ(ran.state.skipped, static_cast<std::int64_t>(steps.size()));
      for (const auto changed : ran.seen->changed) EXPECT_FALSE(steps.contains(changed)) << changed;
      const auto [off, name] = distance(ran.weights, want, 1e-9);
      EXPECT_LE(off, 1) << name;
      EXPECT_EQ(ran.seen->lines.size(), 1U);
      if (world().rank() != 0) continue;
      std::set<std::int64_t> recorded;
      for (const auto& event : folder.events("skipped")) recorded.insert(event.at("step").get<std::int64_t>());
      EXPECT_EQ(recorded, steps);
    }
  }
}

TEST_F(Numbers, SkipEndsAfterTooManyInARow) {
  for (const auto& layout : layouts_) {
    SCOPED_TRACE(layout.name);
    const Folder folder(world());
    const auto ran = run_as(world(), layout, {.plant = {Plant::weight, 2}, .policy = "skip", .most = 3}, folder.path());
    EXPECT_EQ(ran.error.find("step 5: the loss is nan"), 0U) << ran.error;
    for (const auto* part : {"3 before it were bad too", "train.max_nonfinite = 3", "before the step",
                             "Resume from an earlier checkpoint"})
      EXPECT_NE(ran.error.find(part), std::string::npos) << part << ": " << ran.error;
  }
}

TEST_F(Numbers, RollbackTrainsWithoutTheBatch) {
  for (const auto kind : {Plant::sample, Plant::gradient, Plant::weight}) {
    const auto steps = kind == Plant::sample ? bad_ : std::set<std::int64_t>{2};
    const auto want = trained_without(steps);
    for (const auto& layout : layouts_) {
      SCOPED_TRACE(fmt::format("{} {}", layout.name, static_cast<int>(kind)));
      const Folder folder(world());
      const auto ran = run_as(world(), layout, {.plant = {kind}, .policy = "rollback", .save_steps = 4}, folder.path());
      ASSERT_EQ(ran.error, "");
      EXPECT_EQ(ran.state.at.global_step, kSteps);
      EXPECT_EQ(std::set<std::int64_t>(ran.state.numbers.left_out.begin(), ran.state.numbers.left_out.end()), steps);
      const auto [off, name] = distance(ran.weights, want, 1e-9);
      EXPECT_LE(off, 1) << name;
      if (world().rank() != 0) continue;
      EXPECT_EQ(folder.events("rollback").size(), steps.size());
      EXPECT_EQ(folder.events("left_out").size(), steps.size());
    }
  }
}

// A run that is stopped after its return, and before the batch that it leaves out.
TEST_F(Numbers, AResumedRunLeavesOutTheSame) {
  for (const auto& layout : layouts_) {
    SCOPED_TRACE(layout.name);
    Asked asked{.plant = {Plant::gradient, 3}, .policy = "rollback", .save_steps = 1000};
    const Folder whole(world()), parts(world());
    const auto want = run_as(world(), layout, asked, whole.path());
    ASSERT_EQ(want.error, "");
    asked.stop_at = 1;
    const auto stopped = run_as(world(), layout, asked, parts.path());
    ASSERT_EQ(stopped.error, "");
    EXPECT_EQ(stopped.state.at.global_step, 1);
    asked.stop_at = 0;
    asked.resume = true;
    const auto rest = run_as(world(), layout, asked, parts.path());
    EXPECT_EQ(rest.state.at.global_step, kSteps);
    EXPECT_EQ(rest.state.numbers.left_out, std::vector<std::int64_t>{3});
    for (const auto& [name, value] : want.weights) EXPECT_TRUE(at::equal(value, rest.weights.at(name))) << name;
    if (world().rank() == 0) {
      EXPECT_EQ(parts.events("rollback").size(), 1U);  // none in the resumed run
    }
  }
}

TEST_F(Numbers, RollbackEndsAfterTooMany) {
  for (const auto& layout : layouts_) {
    SCOPED_TRACE(layout.name);
    const Folder folder(world());
    const auto ran =
        run_as(world(), layout, {.plant = {Plant::sample}, .policy = "rollback", .most = 1, .save_steps = 1000},
               folder.path());
    EXPECT_EQ(ran.error.find(fmt::format("step {}: the loss is nan", *bad_.rbegin())), 0U) << ran.error;
    EXPECT_NE(ran.error.find("1 times without getting further (train.max_nonfinite)"), std::string::npos) << ran.error;
    EXPECT_NE(ran.error.find("sample 7 alone"), std::string::npos) << ran.error;
  }
}

TEST_F(Numbers, AChangedCopyIsFound) {
  for (const auto& layout : layouts_) {
    SCOPED_TRACE(layout.name);
    const Folder folder(world());
    const auto clean = run_as(world(), layout, {.compare_every = 1}, folder.path());
    EXPECT_EQ(clean.error, "");
    const bool is_held_once =
        layout.name == "gemini" || world().size() == 1 || (layout.dp == 1 && layout.name[0] == 'p');
    const Folder another(world());
    const auto ran = run_as(world(), layout, {.plant = {Plant::copy, 4}, .compare_every = 2}, another.path());
    if (is_held_once) {
      EXPECT_EQ(ran.error, "");
      continue;
    }
    EXPECT_EQ(
        ran.error.find(fmt::format("step 4: ranks that must hold the same weights differ: \"{}\" (ranks ", kCopied)),
        0U)
        << ran.error;
    EXPECT_NE(ran.error.find(fmt::format("| {})", ran.seen->rank)), std::string::npos) << ran.error;
  }
}

}  // namespace
}  // namespace trireme::tests
