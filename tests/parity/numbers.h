// Shared by the tests of bad numbers: what can be wrong in a run, the layouts, and a training by a Trainer.
#pragma once

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
#include <string>

#include "core/base/error.h"
#include "core/comm/host_values.h"
#include "core/data/dataset_wrapper.h"
#include "core/nn/block.h"
#include "core/train/trainer.h"
#include "tasks/tasks.h"
#include "tests/parity/layout.h"
#include "tests/parity/reference.h"
#include "tests/parity/small_vit.h"
#include "tests/ranks/world.h"

namespace trireme::tests::numbers {

namespace fs = std::filesystem;
using train::Trainer;

constexpr std::int64_t kGlobal = 8, kMicro = 2, kSamples = 19, kEpochs = 2, kSteps = 6;
constexpr std::int64_t kBadSample = 7;
constexpr double kDropout = 0.1;
constexpr const char* kCopied = "vit.encoder.layer.1.layernorm_before.weight";
constexpr const char* kWeight = "vit.encoder.layer.1.intermediate.dense.weight";

/// What is wrong in a run.
struct Plant {
  enum Kind { nothing, sample, huge_sample, gradient, copied_gradient, weight, copy, loss } kind = nothing;
  std::int64_t step = 2;  ///< of a gradient or weight, from 1: a full batch, so that every rank has samples
};

/// Samples of which one has a value that is not finite, or so large that the first encoder layer overflows.
class Spoilt final : public data::DatasetWrapper {
 public:
  Spoilt(std::shared_ptr<data::Dataset> of, double value) : DatasetWrapper(std::move(of)), value_(value) {}
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
    const auto all = comm::all_gather_text(world().group(), leaf.defined() ? "has" : "");
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
    const auto all = comm::all_gather_text(world().group(), value.defined() ? "has" : "");
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

inline std::vector<Layout> layouts_on(int ranks) {
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

/// A run's folder, shared by the ranks and removed at the end.
class Folder {
 public:
  explicit Folder(comm::World& ranks) : removes_(ranks.rank() == 0) {
    static int number = 0;
    const auto mine = (fs::temp_directory_path() / fmt::format("trireme_numbers_{}_{}", getpid(), number++)).string();
    path_ = comm::broadcast_text(ranks.group(), mine);
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
  std::int64_t compare_every = 0, epochs = kEpochs;
  bool async_save = false;
};

inline Ran run_as(comm::World& ranks, const Layout& layout, const Asked& asked, const std::string& dir) {
  const auto clean = make_data({.name = "numbers", .samples = kSamples});
  std::shared_ptr<data::Dataset> data = clean;
  if (asked.plant.kind == Plant::sample) data = std::make_shared<Spoilt>(clean, NAN);
  if (asked.plant.kind == Plant::huge_sample)
    data = std::make_shared<Spoilt>(clean, std::numeric_limits<double>::max());
  const SmallVit vit(*clean, kDropout);
  Ran ran;
  ran.seen = std::make_shared<Planter>(asked.plant);
  ran.seen->stop_at = asked.stop_at;
  const train::TrainingArguments arguments{.output_dir = dir,
                                           .plugin = layout.plugin,
                                           .plugin_options = layout.options,
                                           .per_device_train_batch_size = kMicro,
                                           .gradient_accumulation_steps = kGlobal / kMicro / layout.dp,
                                           .num_train_epochs = asked.epochs,
                                           .precision = "fp64",
                                           .learning_rate = 1e-3,
                                           .weight_decay = 0.1,
                                           .eval_strategy = train::Strategy::no,
                                           .save_strategy = train::Strategy::steps,
                                           .save_steps = asked.save_steps,
                                           .async_save = asked.async_save,
                                           .resume_from_checkpoint = asked.resume ? "auto" : "",
                                           .on_nonfinite = asked.policy,
                                           .max_nonfinite = asked.most,
                                           .loss_spike = asked.spike,
                                           .on_loss_spike = asked.on_spike,
                                           .compare_replicas_every = asked.compare_every,
                                           .seed = static_cast<std::int64_t>(kSeed)};
  train::TrainerInputs inputs{
      .model = [&] { return vit.source(); }, .task = tasks::classification(), .train = data, .callbacks = {ran.seen}};
  if (asked.plant.kind == Plant::loss)  // by a constant, which changes no gradient
    inputs.loss = [task = inputs.task](const nn::Tensors& outputs, const data::Batch& batch,
                                       const Task::LossOptions& options) {
      return task->loss(outputs, batch, options) + 100 * batch.sample_ids.eq(kBadSample).sum();
    };
  Trainer trainer(ranks, arguments, inputs);
  testing::internal::CaptureStdout();
  try {
    ran.state = trainer.train().state;
    ran.weights = gathered(trainer.boosted().model->weights(), trainer.boosted().booster->mesh());
  } catch (const NonFiniteError& error) {
    ran.error = error.what();
  }
  testing::internal::GetCapturedStdout();
  return ran;
}

}  // namespace trireme::tests::numbers
