// Contract C1 for tasks over samples of varying length: the loss is the mean over what counts in the global batch, in
// every layout. Batches are padded, ranks and microbatches have very different numbers of labels that count, and every
// block reads the padding mask, in a pipeline too.
#include "tasks/tasks.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "core/base/random.h"
#include "core/nn/block.h"
#include "core/nn/embedding.h"
#include "core/nn/linear.h"
#include "core/optim/sgd.h"
#include "core/train/evaluate.h"
#include "tests/parity/layout.h"

namespace trireme::tests {
namespace {

constexpr std::int64_t kTokenIds = 7, kWidth = 6, kSentences = 19, kPerStep = 8, kTrainSteps = 4;
constexpr double kRate = 0.3;

std::int64_t drawn(std::int64_t index, std::int64_t number, std::int64_t below) {
  const auto key = random::mix(random::hash("sentences"), static_cast<std::uint64_t>(index));
  return static_cast<std::int64_t>(random::uniform(key, static_cast<std::uint64_t>(number)) *
                                   static_cast<double>(below));
}

/// 1 to 9 tokens a sample. Labels of tokens: all of them count in some samples, none in others.
class Sentences : public data::Dataset {
 public:
  explicit Sentences(std::string task) : task_(std::move(task)) {}
  std::int64_t size() const override { return kSentences; }
  std::optional<data::Sample> get(std::int64_t index, std::int64_t, bool) override {
    const auto length = 1 + drawn(index, 0, 9);
    auto ids = at::zeros({length}, at::kLong), labels = at::full({length}, -100, at::kLong);
    for (std::int64_t t = 0; t < length; ++t) {
      ids[t] = drawn(index, 10 + t, kTokenIds);
      if (index % 3 == 0 || (index % 3 == 1 && t == 0)) labels[t] = drawn(index, 30 + t, kTokenIds);
    }
    data::Sample sample{{{"input_ids", ids}, {"mask", at::ones_like(ids)}}, {}};
    if (task_ == "classification") labels = at::full({}, index % 4 == 0 ? -100 : index % kTokenIds, at::kLong);
    if (task_ == "multi_label")
      labels = at::rand({kTokenIds}, at::kDouble).mul_(0).add_(0.1 * (index % 5)).gt(0.15).to(at::kLong);
    if (task_ == "regression") labels = at::full({kTokenIds}, 0.3 * static_cast<double>(index % 4), at::kDouble);
    sample.targets = {{nn::kLabels, labels}};
    return sample;
  }
  nn::DataSpec spec() override {
    const bool sample = task_ == "classification";
    nn::DataSpec spec{.inputs = {{"input_ids", at::kLong, {-1}}, {"mask", at::kLong, {-1}}},
                      .targets = {{nn::kLabels, at::kLong, {-1}}},
                      .ignored_labels = true};
    if (sample) spec.targets.front().shape.clear();
    if (sample) spec.classes = kTokenIds;
    if (task_ == "multi_label" || task_ == "regression") spec.targets.front().shape = {kTokenIds};
    if (task_ == "regression") spec.targets.front().dtype = at::kDouble;
    return spec;
  }
  data::Sample collate(std::vector<data::Sample> samples, const std::vector<std::int64_t>& indices) override {
    return data::collate_padded(std::move(samples), indices, spec(), {.values = {{nn::kLabels, -100}}});
  }

 private:
  std::string task_;
};

/// x + W2 tanh(W1 (x + mean of the sample's tokens that are no padding))
class Mix : public nn::Block {
 public:
  Mix()
      : up_(register_module(
            "up", std::make_shared<nn::Linear>(nn::Linear::Options{.in = kWidth, .out = 2 * kWidth, .init_std = 0.4}))),
        down_(register_module("down", std::make_shared<nn::Linear>(
                                          nn::Linear::Options{.in = 2 * kWidth, .out = kWidth, .init_std = 0.4}))) {}
  nn::Tensors forward(nn::Tensors inputs, const nn::Context& context) override {
    const auto& x = inputs[0];
    const auto mask = context.side["mask"].to(x.scalar_type()).unsqueeze(2);
    const auto mean = (x * mask).sum(1, true) / mask.sum(1, true).clamp_min(1);
    return {x + down_->forward(up_->forward(x + mean, context).tanh(), context)};
  }

 private:
  std::shared_ptr<nn::Linear> up_, down_;
};

class Embed : public nn::Block {
 public:
  explicit Embed(std::shared_ptr<nn::Embedding> ids) : ids_(register_module("ids", std::move(ids))) {}
  nn::Tensors forward(nn::Tensors inputs, const nn::Context& context) override {
    return {ids_->forward(inputs[0], context)};
  }

 private:
  std::shared_ptr<nn::Embedding> ids_;
};

/// Scores of every token, by the embedding, or of the sample.
class Scores : public nn::Block {
 public:
  Scores(std::shared_ptr<nn::Embedding> ids, bool tokens)
      : ids_(register_module("ids", std::move(ids))), tokens_(tokens) {}
  nn::Tensors forward(nn::Tensors inputs, const nn::Context& context) override {
    const auto mask = context.side["mask"].to(inputs[0].scalar_type()).unsqueeze(2);
    return {ids_->scores(tokens_ ? inputs[0] : (inputs[0] * mask).sum(1), context)};
  }

 private:
  std::shared_ptr<nn::Embedding> ids_;
  bool tokens_;
};

class Tagger : public nn::Model {
 public:
  explicit Tagger(bool tokens) {
    const auto ids =
        register_module("ids", std::make_shared<nn::Embedding>(nn::Embedding::Options{kTokenIds, kWidth, 0.6}));
    add_block(register_module("embed", std::make_shared<Embed>(ids)));
    for (const auto* name : {"mix0", "mix1"}) add_block(register_module(name, std::make_shared<Mix>()));
    add_block(register_module("scores", std::make_shared<Scores>(ids, tokens)));
    finish();
  }
  std::vector<std::string> input_names() const override { return {"input_ids"}; }
  std::vector<std::string> side_input_names() const override { return {"mask"}; }
};

std::shared_ptr<nn::Model> make_tagger(const std::string& task) {
  return std::make_shared<Tagger>(task.ends_with("_lm"));
}
std::shared_ptr<const Task> make(const std::string& task) {
  return tasks::all_tasks().at(task).make(Sentences(task).spec());
}

/// The loss of a whole global batch, by hand.
at::Tensor loss_by_hand(const std::string& task, const at::Tensor& out, const at::Tensor& labels) {
  if (task == "regression") return (out - labels).square().mean();
  if (task == "multi_label") {
    const auto y = labels.to(out.scalar_type());
    return -(y * out.sigmoid().log() + (1 - y) * (-out).sigmoid().log()).mean();
  }
  const bool causal = task == "causal_lm";
  const auto logits = causal ? out.narrow(1, 0, out.size(1) - 1) : out;
  const auto wanted = causal ? labels.narrow(1, 1, labels.size(1) - 1) : labels;
  if (!wanted.ne(-100).any().item<bool>()) return logits.sum() * 0;  // a step in which nothing counts changes nothing
  return at::cross_entropy_loss(logits.reshape({-1, kTokenIds}), wanted.reshape({-1}));
}

struct Outcome {
  std::vector<double> losses;
  Named weights;
};

/// One process, each global batch at once, plain gradient descent.
Outcome train_by_hand(const std::string& task) {
  const auto model = make_tagger(task);
  nn::materialize(*model, kSeed, at::kDouble, at::kCPU);
  auto parameters = nn::parameters(*model);
  const auto data = std::make_shared<Sentences>(task);
  data::LoaderOptions options{.global_batch = kPerStep, .micro_batch = kPerStep};
  options.seed = kSeed;
  options.shuffle = true;
  options.dtype = at::kDouble;
  data::Loader loader(data, options);
  Outcome outcome;
  for (std::int64_t step = 0; step < kTrainSteps; ++step) {
    loader.start_epoch(step / loader.steps_per_epoch(), step % loader.steps_per_epoch());
    const auto batch = loader.next()->micro.front();
    const nn::Context context{.training = true, .side = model->side_inputs(batch.inputs)};
    const auto out = model->forward(model->first_inputs(batch.inputs), context).front();
    const auto loss = loss_by_hand(task, out, batch.targets[nn::kLabels]);
    loss.backward();
    outcome.losses.push_back(loss.item<double>());
    const at::NoGradGuard no_grad;
    for (auto& p : parameters) {
      p.value.sub_(kRate * p.value.grad());
      p.value.mutable_grad() = at::Tensor();
    }
  }
  for (const auto& p : parameters) outcome.weights[p.name] = p.value.detach().clone();
  return outcome;
}

struct TaskLayout {
  std::string name, plugin, keys;
  int inner = 1;  ///< ranks that one data-parallel rank takes
  bool recompute = false;
};
void PrintTo(const TaskLayout& layout, std::ostream* out) { *out << layout.name; }

class ParityTasks : public testing::TestWithParam<TaskLayout> {};

TEST_P(ParityTasks, TheLossIsTheMeanOverWhatCountsInTheGlobalBatch) {
  const auto& layout = GetParam();
  if (world().size() % layout.inner != 0) GTEST_SKIP() << "needs more ranks";
  for (const auto& task : tasks::all_tasks().names()) {
    SCOPED_TRACE(task);
    const auto expected = train_by_hand(task);
    Case c;
    c.plugin_name = layout.plugin;
    c.plugin = layout.keys;
    BoostOptions options;
    options.train.global_batch = kPerStep;
    options.train.micro_batch = 1;
    options.train.precision = "fp64";
    options.train.recompute = layout.recompute;
    options.train.epochs = kTrainSteps;
    options.optimizer.method = optim::sgd();
    options.optimizer.lr = kRate;
    options.seed = kSeed;
    Booster booster(world(), make_plugin(c), options);
    BoostInputs inputs{
        .source = {.model = make_tagger(task)}, .task = make(task), .data = std::make_shared<Sentences>(task)};
    inputs.source.policy = {{"ids", nn::Role::classifier_head},
                            {"mix*.up", nn::Role::column_parallel},
                            {"mix*.down", nn::Role::row_parallel}};
    auto run = booster.boost(std::move(inputs));
    Outcome got;
    for (std::int64_t step = 0; step < kTrainSteps; ++step) {
      run.loader->start_epoch(step / run.loader->steps_per_epoch(), step % run.loader->steps_per_epoch());
      got.losses.push_back(booster.train_step(run, *run.loader->next()).loss.item<double>());
    }
    for (std::size_t step = 0; step < expected.losses.size(); ++step)
      EXPECT_NEAR(got.losses.at(step), expected.losses[step], kBound * expected.losses[step]) << "step " << step + 1;
    const auto [worst, name] = distance(gathered(run.model->weights(), booster.mesh()), expected.weights, kBound);
    EXPECT_LE(worst, 1) << "weight " << name;

    // An evaluation is the same however samples meet in batches.
    const auto one = train::evaluate(booster, run, *booster.evaluation_loader(std::make_shared<Sentences>(task), 1));
    const auto many = train::evaluate(booster, run, *booster.evaluation_loader(std::make_shared<Sentences>(task), 7));
    EXPECT_EQ(one.samples, kSentences);
    EXPECT_NEAR(one.loss, many.loss, kBound * one.loss);
    ASSERT_EQ(one.metrics.size(), make(task)->metrics().size());
    for (const auto& [metric, value] : one.metrics)
      EXPECT_NEAR(many.value(metric.name), value, kBound * std::abs(value)) << metric.name;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, ParityTasks,
    testing::Values(TaskLayout{"torch_ddp", "torch_ddp", ""},
                    TaskLayout{"torch_ddp_recompute", "torch_ddp", "", 1, true},
                    TaskLayout{"low_level_zero", "low_level_zero", "stage = 2"}, TaskLayout{"gemini", "gemini", ""},
                    TaskLayout{"zero3", "hybrid_parallel", "zero_stage = 3"},
                    TaskLayout{"tp2", "hybrid_parallel", "tp_size = 2\nzero_stage = 0", 2},
                    TaskLayout{"tp2_gathered", "hybrid_parallel", "tp_size = 2\nparallel_output = false", 2},
                    TaskLayout{"pp2", "hybrid_parallel", "pp_size = 2\nmicrobatch_size = 1\nzero_stage = 0", 2},
                    TaskLayout{"pp2_zero1_recompute", "hybrid_parallel",
                               "pp_size = 2\nmicrobatch_size = 3\nzero_stage = 1", 2, true},
                    TaskLayout{"pp2_zbv", "hybrid_parallel", "pp_size = 2\nmicrobatch_size = 2\npp_style = \"zbv\"", 2},
                    TaskLayout{"tp2_pp2", "hybrid_parallel", "tp_size = 2\npp_size = 2\nmicrobatch_size = 2", 4},
                    TaskLayout{"tp4", "hybrid_parallel", "tp_size = 4", 4}),
    [](const auto& value) { return value.param.name; });

}  // namespace
}  // namespace trireme::tests
