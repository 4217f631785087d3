// A user's loop with Accelerator equals one process, under every plugin and on any number of ranks.
#include "core/accelerate/accelerator.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/rmsprop.h>
#include <unistd.h>

#include <filesystem>
#include <ostream>
#include <string>

#include "core/base/error.h"
#include "core/checkpoint/formats/safetensors.h"
#include "core/comm/host_values.h"
#include "core/data/rows.h"
#include "core/nn/block.h"
#include "core/optim/lr_schedule.h"
#include "tests/parity/accelerator_net.h"

namespace trireme::tests {
namespace {

namespace fs = std::filesystem;

struct AcceleratorCase {
  const char* name;
  const char* plugin;
  PluginOptions keys{};
  int inner = 1;                  ///< the number of ranks is a multiple of it
  std::int64_t accumulation = 1;  ///< the case's global batch is divided by it
  enum class Reader { each_its_own, by_index, first } reader = Reader::each_its_own;
};

void PrintTo(const AcceleratorCase& c, std::ostream* out) { *out << c.name; }

/// The case's samples as rows, which ranks can send to each other.
class InRows : public data::RowDataset {
 public:
  explicit InRows(const Case& c, AcceleratorCase::Reader reader) : samples_(make_data(c)), reader_(reader) {}
  std::int64_t size() const override { return samples_->size(); }
  nn::DataSpec spec() override { return samples_->spec(); }
  data::RowSpec row_spec(const std::vector<std::string>&, bool) const override {
    const auto all = samples_->spec();
    return {all.inputs, all.targets};
  }
  std::optional<data::Sample> read(const std::vector<std::string>&, std::int64_t index, std::int64_t epoch,
                                   bool augment) override {
    using Reader = AcceleratorCase::Reader;
    const auto reader = reader_ == Reader::first ? 0 : index % world().size();
    EXPECT_TRUE(reader_ == Reader::each_its_own || world().rank() == reader) << "reads another rank's sample " << index;
    return samples_->get(index, epoch, augment);
  }
  data::Sample transform_batch(data::Sample batch, bool) const override { return batch; }

 private:
  std::shared_ptr<data::Dataset> samples_;
  AcceleratorCase::Reader reader_;
};

/// A folder that all ranks use, removed at the end.
class SharedFolder {
 public:
  SharedFolder()
      : path_(comm::broadcast_text(
            world().group(), (fs::temp_directory_path() / ("trireme_accelerator_" + std::to_string(getpid()))))) {}
  ~SharedFolder() {
    world().group().barrier();
    if (world().rank() == 0) fs::remove_all(path_);
  }
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
};

Accelerator make_accelerator(const AcceleratorCase& layout) {
  return Accelerator(world(), {.plugin = layout.plugin,
                               .plugin_options = layout.keys,
                               .mixed_precision = "fp64",
                               .gradient_accumulation_steps = layout.accumulation,
                               .seed = kSeed,
                               .split_batches = true,
                               .dispatch_batches = layout.reader == AcceleratorCase::Reader::first,
                               .shard_data = layout.reader == AcceleratorCase::Reader::by_index});
}

/// One run of a program: the loop of a user who stops at a time limit and is started again.
struct Program {
  const Case& c;
  const AcceleratorCase& layout;
  Accelerator accelerator = make_accelerator(layout);

  /// Stops after `most` batches of this start. Returns whether the training is done.
  template <class Model, class Optimizer>
  bool run(Model&& net, Optimizer&& adamw, const std::string& dir, std::int64_t most) {
    const auto data = std::make_shared<InRows>(c, layout.reader);
    auto [test, model, train, scheduler, optimizer] = accelerator.prepare(
        DataLoaderOptions{.dataset = data, .batch_size = 6}, std::forward<Model>(net),
        DataLoaderOptions{.dataset = data, .batch_size = c.global_batch / layout.accumulation, .shuffle = true},
        LrSchedulerOptions{.schedule = {.curve = optim::linear()}, .total_steps = c.steps},
        std::forward<Optimizer>(adamw));
    accelerator.load_state(dir);
    std::int64_t batches = 0;
    const auto epochs = c.steps / 3;  // of three steps
    for (auto epoch = train.epoch(); epoch < epochs; ++epoch) {
      for (const auto& batch : train) {
        const auto guard = accelerator.accumulate(model);
        optimizer.zero_grad();
        const auto loss = at::cross_entropy_loss(model(batch), batch.targets["labels"]);
        accelerator.backward(loss);
        accelerator.clip_grad_norm(model, c.max_norm);
        optimizer.step();
        scheduler.step();
        EXPECT_EQ(optimizer.step_was_skipped(), false);
        evaluate(model, test, data->size());  // inside the loop, whose batch must not change
        model.train();
        if (++batches == most) {
          accelerator.save_state(dir);
          return false;
        }
      }
    }
    EXPECT_EQ(optimizer.steps(), c.steps);
    EXPECT_NEAR(scheduler.lr(), 0, 1e-15);
    accelerator.save_model(model, dir + "/model");
    accelerator.wait_for_everyone();
    return true;
  }

  /// Each sample is gathered exactly once, in order.
  void evaluate(PreparedModel& model, PreparedLoader& test, std::int64_t samples) {
    model.eval();
    const at::NoGradGuard no_grad;
    std::int64_t seen = 0;
    for (const auto& batch : test) {
      const auto logits = model(batch);
      EXPECT_TRUE(at::equal(model(batch.inputs.front()), logits));
      const auto predictions = logits.argmax(-1);
      const auto [ids, classes] = accelerator.gather_for_metrics(batch.sample_ids, predictions);
      EXPECT_TRUE(at::equal(ids, at::arange(seen, std::min(seen + 6, samples))));
      EXPECT_EQ(classes.size(0), ids.size(0));
      EXPECT_EQ(accelerator.reduce(at::full({}, test.local_samples())).item<std::int64_t>(), ids.size(0));
      seen += ids.size(0);
    }
    EXPECT_EQ(seen, samples);
  }
};

Named saved_weights(const std::string& dir) {
  const checkpoint::SafeTensors file(dir + "/model/model.safetensors");
  Named weights;
  for (const auto& [name, entry] : file.tensors()) weights[name] = file.read(name);
  return weights;
}

void expect_weights(const Case& c, const std::string& dir) {
  const auto [worst, name] = distance(saved_weights(dir), reference(c).weights, kBound);
  EXPECT_LE(worst, 1) << "weight " << name;
}

class ParityAccelerator : public testing::TestWithParam<AcceleratorCase> {
 protected:
  void SetUp() override {
    if (world().size() % GetParam().inner != 0) GTEST_SKIP() << "needs more ranks";
  }
};

// Dropout, a ragged batch of which some ranks have no sample, clipping, a schedule, and a stop in the middle of an
// accumulation and of an epoch.
TEST_P(ParityAccelerator, TrainsAModelOfTheLibrary) {
  Case c{.name = "library", .samples = 19, .steps = 6, .dropout = 0.3, .max_norm = 0.5, .no_decay = {"bias"}};
  const SharedFolder folder;
  for (const std::int64_t most : {4, 100})
    EXPECT_EQ(Program(c, GetParam()).run(make_inputs(c).source, make_options(c).optimizer, folder.path(), most),
              most == 100);
  expect_weights(c, folder.path());
}

TEST_P(ParityAccelerator, TrainsAModuleWithAnOptimizerOfTorch) {
  if (GetParam().inner > 1) GTEST_SKIP() << "a user's module has no policy";
  const auto c = user_case();
  const SharedFolder folder;
  for (const std::int64_t most : {3, 100}) {
    UserNet net(c);
    auto adamw = user_adamw(net);
    EXPECT_EQ(Program(c, GetParam()).run(net, adamw, folder.path(), most), most == 100);
  }
  expect_weights(c, folder.path());
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, ParityAccelerator,
    testing::Values(AcceleratorCase{"torch_ddp", "torch_ddp"},
                    AcceleratorCase{.name = "torch_ddp_accumulate", .plugin = "torch_ddp", .accumulation = 2},
                    AcceleratorCase{.name = "zero1_accumulate", .plugin = "low_level_zero", .accumulation = 2},
                    AcceleratorCase{"zero2", "low_level_zero", {{"stage", 2}}},
                    AcceleratorCase{"zero2_accumulate", "low_level_zero", {{"stage", 2}}, 1, 2},
                    AcceleratorCase{.name = "gemini", .plugin = "gemini", .accumulation = 2},
                    AcceleratorCase{.name = "shard_data",
                                    .plugin = "torch_ddp",
                                    .accumulation = 2,
                                    .reader = AcceleratorCase::Reader::by_index},
                    AcceleratorCase{.name = "dispatch",
                                    .plugin = "low_level_zero",
                                    .accumulation = 2,
                                    .reader = AcceleratorCase::Reader::first},
                    AcceleratorCase{"hybrid", "hybrid_parallel", {{"zero_stage", 1}}},
                    AcceleratorCase{"hybrid_tp2", "hybrid_parallel", {{"tp_size", 2}, {"zero_stage", 0}}, 2, 2}),
    [](const auto& value) { return value.param.name; });

TEST(AcceleratorRules, GathersAndReduces) {
  const auto c = user_case();
  Accelerator accelerator(world(), {.mixed_precision = "fp64"});
  UserNet net(c);
  auto adamw = user_adamw(net);
  auto [model, optimizer] = accelerator.prepare(net, adamw);
  const auto rank = world().rank();
  const auto all = accelerator.gather(at::full({rank, 2}, rank, at::kLong));
  EXPECT_EQ(all.size(0), world().size() * (world().size() - 1) / 2) << "uneven sizes";
  EXPECT_TRUE(at::equal(accelerator.gather(at::full({}, rank, at::kLong)), at::arange(world().size())));
  EXPECT_EQ(accelerator.reduce(at::full({}, 2.0)).item<double>(), 2 * world().size());
  EXPECT_THROW((void)accelerator.gather_for_metrics(at::full({1}, 0)), UsageError);
  std::string order;
  accelerator.main_process_first([&] { order += "once"; });
  EXPECT_EQ(order, "once");
  // Without split_batches the batch size is that of one rank.
  auto [loader] = accelerator.prepare(DataLoaderOptions{.dataset = make_data(c), .batch_size = 2});
  EXPECT_EQ(loader.total_batch_size(), 2 * world().size());
}

TEST(AcceleratorRules, WhatCannotWorkIsRefused) {
  const auto c = user_case();
  UserNet net(c);
  auto adamw = user_adamw(net);
  torch::optim::RMSprop other(net->parameters());
  torch::optim::AdamW amsgrad(net->parameters(), torch::optim::AdamWOptions(1e-3).amsgrad(true));
  const DataLoaderOptions loader{.dataset = make_data(c), .batch_size = 4};
  Accelerator accelerator(world(), {.mixed_precision = "fp64"});
  EXPECT_THROW(accelerator.prepare(net), UsageError) << "no optimizer";
  EXPECT_THROW(accelerator.prepare(loader), UsageError) << "no model";
  EXPECT_THROW(accelerator.prepare(net, other), UsageError);
  EXPECT_THROW(accelerator.prepare(net, amsgrad), UsageError);
  UserNet another(c);
  EXPECT_THROW(accelerator.prepare(another, adamw), UsageError) << "parameters of another model";
  EXPECT_THROW(accelerator.prepare(net, adamw, loader, LrSchedulerOptions{}), UsageError) << "no length";
  accelerator.free_memory();
  auto [model, optimizer] = accelerator.prepare(net, adamw);
  EXPECT_THROW(accelerator.prepare(net, adamw), UsageError) << "a second model";
  EXPECT_THROW((void)accelerator.accumulate(model), UsageError) << "no loop";
  EXPECT_THROW(Accelerator(world(), {.gradient_accumulation_steps = 0}), ConfigError);
  if (world().size() % 2 == 0) {
    Accelerator pipeline(world(), {.plugin = "hybrid_parallel", .plugin_options = {{"pp_size", 2}}});
    EXPECT_THROW(pipeline.prepare(net, adamw), ConfigError);
  }
}

TEST(AcceleratorRules, ACheckpointOfOtherBatchesIsRefused) {
  const auto c = user_case();
  const SharedFolder folder;
  for (const std::int64_t batch : {4, 5}) {
    UserNet net(c);
    auto adamw = user_adamw(net);
    Accelerator accelerator(world(), {.mixed_precision = "fp64"});
    auto [model, optimizer, loader] =
        accelerator.prepare(net, adamw, DataLoaderOptions{.dataset = make_data(c), .batch_size = batch});
    if (batch == 4)
      accelerator.save_state(folder.path());
    else
      EXPECT_THROW(accelerator.load_state(folder.path()), CheckpointError);
  }
}

/// Runs two epochs of 5 batches in steps of 2, and returns the weights. The first epoch is left after 3 batches, and a
/// checkpoint stored. `looks`: evaluations that are left at once stand everywhere in the loop.
Named leave_loops(const std::string& dir, bool looks) {
  const auto c = user_case();
  UserNet net(c);
  auto adamw = user_adamw(net);
  Accelerator accelerator(
      world(), {.mixed_precision = "fp64", .gradient_accumulation_steps = 2, .seed = kSeed, .split_batches = true});
  const auto data = make_data(c);
  auto [model, optimizer, train, test] =
      accelerator.prepare(net, adamw, DataLoaderOptions{.dataset = data, .batch_size = 4, .shuffle = true},
                          DataLoaderOptions{.dataset = data, .batch_size = 6});
  const auto look = [&, &model = model, &test = test] {
    if (!looks) return;
    const at::NoGradGuard no_grad;
    model.eval();
    for (const auto& batch : test) {
      EXPECT_EQ(accelerator.gather_for_metrics(model(batch)).size(0), 6);
      break;
    }
    model.train();
  };
  accelerator.load_state(dir);
  while (train.epoch() < 2) {
    const auto most = train.epoch() == 0 ? 3 : 5;
    std::int64_t batches = 0;
    for (const auto& batch : train) {
      look();
      const auto guard = accelerator.accumulate(model);
      look();
      accelerator.backward(at::cross_entropy_loss(model(batch), batch.targets["labels"]));
      look();
      optimizer.step();
      optimizer.zero_grad();
      EXPECT_EQ(accelerator.sync_gradients(), ++batches % 2 == 0 || batches == 5);
      if (batches == most) break;
    }
    if (train.epoch() != 1) continue;
    optimizer.step();  // does nothing: an accumulation was left
    accelerator.save_state(dir);
  }
  EXPECT_EQ(optimizer.steps(), 4);
  accelerator.save_model(model, dir + "/model");
  accelerator.wait_for_everyone();
  return saved_weights(dir);
}

TEST(AcceleratorRules, ALeftLoopEndsItsEpochAndNoOther) {
  const SharedFolder folder;
  const auto plain = leave_loops(folder.path() + "/plain", false);
  for (const auto* start : {"new", "resumed"}) {
    const auto [worst, name] = distance(leave_loops(folder.path() + "/looks", true), plain, kBound);
    EXPECT_LE(worst, 1) << start << ": weight " << name;
  }
}

TEST(AcceleratorRules, BuffersAreNotStoredInTheMiddleOfAnAccumulation) {
  const auto c = user_case();
  const auto features = 3 * c.pixels * c.pixels;
  const SharedFolder folder;
  torch::nn::Sequential net(torch::nn::Flatten(), torch::nn::BatchNorm1d(features), torch::nn::Linear(features, 5));
  Accelerator accelerator(world(), {.mixed_precision = "fp64", .gradient_accumulation_steps = 2});
  auto [model, optimizer, train] =
      accelerator.prepare(net, optim::OptimizerOptions{}, DataLoaderOptions{.dataset = make_data(c), .batch_size = 2});
  for (const auto& batch : train) {
    EXPECT_THROW(optimizer.step(), UsageError) << "without accumulate()";
    const auto guard = accelerator.accumulate(model);
    accelerator.backward(at::cross_entropy_loss(model(batch), batch.targets["labels"]));
    optimizer.step();
    optimizer.zero_grad();
    if (accelerator.sync_gradients()) break;
    EXPECT_THROW(accelerator.save_state(folder.path()), UsageError);
  }
  EXPECT_NO_THROW(accelerator.save_state(folder.path()));
}

}  // namespace
}  // namespace trireme::tests
