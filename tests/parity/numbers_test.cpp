// Steps whose loss or gradients are not finite, in every layout: what each train.on_nonfinite does, and what the report
// of a run that ends says. Copies of weights that differ.
#include "tests/parity/numbers.h"

#include <set>

namespace trireme::tests::numbers {
namespace {

/// Trains on clean data in this process, without the steps in `without`: they count, and change nothing.
Named trained_without(const std::set<std::int64_t>& without, std::int64_t epochs = kEpochs) {
  const auto data = make_data({.name = "numbers", .samples = kSamples});
  const SmallVit vit(*data, kDropout);
  static const auto alone = comm::World::start(LaunchInfo{}, {.device = "cpu"});
  optim::OptimizerOptions optimizer{.lr = 1e-3, .weight_decay = 0.1};
  Booster booster(
      *alone, load_plugin("torch_ddp"),
      {.train = {.epochs = epochs, .global_batch = kGlobal, .micro_batch = kMicro, .precision = "fp64", .max_norm = 1},
       .optimizer = optimizer,
       .lr_schedule = {.curve = optim::linear()},
       .seed = kSeed});
  auto run = booster.boost({.source = vit.source(), .task = tasks::classification(), .data = data});
  for (std::int64_t epoch = 0; epoch < epochs; ++epoch) {
    run.loader->start_epoch(epoch);
    while (auto batch = run.loader->next())
      if (without.contains(run.step + 1))
        ++run.step;
      else
        run.train_step(*batch);
  }
  Named out;
  for (const auto& [placement, value] : run.model->weights()) out[placement.name] = value.detach().clone();
  return out;
}

/// The steps (from 1) whose batch has the bad sample: one in each epoch.
std::set<std::int64_t> bad_steps(std::int64_t epochs = kEpochs) {
  const auto data = make_data({.name = "numbers", .samples = kSamples});
  data::LoaderOptions options;
  options.global_batch = kGlobal;
  options.micro_batch = kGlobal;
  options.shuffle = true;
  options.seed = kSeed;
  options.dtype = at::kDouble;
  data::Loader loader(data, options);
  std::set<std::int64_t> steps;
  for (std::int64_t epoch = 0, step = 0; epoch < epochs; ++epoch) {
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
      // CUDA's layer normalisation of numbers whose squares overflow gives zeros.
      if (row.kind == Plant::huge_sample && world().device().is_cuda()) continue;
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
      EXPECT_EQ(comm::broadcast_text(world().group(), ran.error), ran.error);
      // Nothing has used the numbers; on GPUs, later steps are launched before this one is read.
      for (const auto changed : ran.seen->changed)
        EXPECT_TRUE(changed < step || (changed > step && world().device().is_cuda())) << changed;
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
    for (std::size_t i = 0; i < layouts_.size(); ++i) {
      const auto& layout = layouts_[i];
      // Every other layout has no checkpoint between the bad steps, but the first.
      const std::int64_t save_steps = i % 2 == 0 ? 1000 : 4;
      SCOPED_TRACE(fmt::format("{} {} {}", layout.name, static_cast<int>(kind), save_steps));
      const Folder folder(world());
      const auto ran = run_as(
          world(), layout,
          {.plant = {kind}, .policy = "rollback", .save_steps = save_steps, .async_save = kind != Plant::gradient},
          folder.path());
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

// The first 16 losses are only compared with.
TEST_F(Numbers, ASpikeIsLeftOutToo) {
  constexpr std::int64_t kLong = 6;
  auto spikes = bad_steps(kLong);
  spikes.erase(spikes.begin(), spikes.upper_bound(16));
  ASSERT_EQ(spikes.size(), 1U);
  // The gradient of a key's bias is zero but for rounding, which Adam scales up to whole steps.
  const auto without_key_bias = [](Named weights) {
    std::erase_if(weights, [](const auto& item) { return item.first.ends_with("key.bias"); });
    return weights;
  };
  const auto want = without_key_bias(trained_without(spikes, kLong));
  for (const auto& layout : layouts_) {
    SCOPED_TRACE(layout.name);
    const Folder folder(world());
    const auto ran = run_as(
        world(), layout, {.plant = {Plant::loss}, .save_steps = 4, .spike = 8, .on_spike = "rollback", .epochs = kLong},
        folder.path());
    ASSERT_EQ(ran.error, "");
    EXPECT_EQ(std::set<std::int64_t>(ran.state.numbers.left_out.begin(), ran.state.numbers.left_out.end()), spikes);
    const auto [off, name] = distance(without_key_bias(ran.weights), want, 1e-9);
    EXPECT_LE(off, 1) << name;
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
}  // namespace trireme::tests::numbers
