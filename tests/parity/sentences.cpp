#include "tests/parity/sentences.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <utility>

#include "core/base/random.h"
#include "core/nn/block.h"
#include "core/optim/optimizers.h"
#include "core/train/evaluate.h"

namespace trireme::tests {
namespace {

// The second step has the 3 samples that are left of the epoch: fewer than ranks in the larger worlds.
constexpr std::int64_t kPerStep = 8, kTrainSteps = 2;
constexpr double kRate = 0.3;

std::int64_t drawn(std::int64_t index, std::int64_t number, std::int64_t below) {
  const auto key = random::mix(random::hash("sentences"), static_cast<std::uint64_t>(index));
  return static_cast<std::int64_t>(random::uniform(key, static_cast<std::uint64_t>(number)) *
                                   static_cast<double>(below));
}

/// The loss of a whole global batch by its formula.
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
  return at::cross_entropy_loss(logits.reshape({-1, logits.size(-1)}), wanted.reshape({-1}));
}

}  // namespace

std::optional<data::Sample> Sentences::get(std::int64_t index, std::int64_t, bool) {
  const auto length = 1 + drawn(index, 0, kLongest);
  auto ids = at::zeros({length}, at::kLong), labels = at::full({length}, -100, at::kLong);
  for (std::int64_t t = 0; t < length; ++t) {
    ids[t] = drawn(index, 10 + t, kTokenIds);
    if (index % 3 == 0 || (index % 3 == 1 && t == 0)) labels[t] = drawn(index, 30 + t, kTokenIds);
  }
  data::Sample sample{{{"input_ids", ids}, {"attention_mask", at::ones_like(ids)}}, {}};
  if (task_ == "classification") labels = at::full({}, index % 4 == 0 ? -100 : index % kTokenIds, at::kLong);
  if (task_ == "multi_label")
    labels = at::rand({kTokenIds}, at::kDouble).mul_(0).add_(0.1 * (index % 5)).gt(0.15).to(at::kLong);
  if (task_ == "regression") labels = at::full({kTokenIds}, 0.3 * static_cast<double>(index % 4), at::kDouble);
  sample.targets = {{nn::kLabels, labels}};
  return sample;
}

nn::DataSpec Sentences::spec() {
  const bool sample = task_ == "classification";
  nn::DataSpec spec{.inputs = {{"input_ids", at::kLong, {-1}}, {"attention_mask", at::kLong, {-1}}},
                    .targets = {{nn::kLabels, at::kLong, {-1}}},
                    .ignored_labels = true};
  if (sample) spec.targets.front().shape.clear();
  if (sample) spec.classes = kTokenIds;
  if (task_ == "multi_label" || task_ == "regression") spec.targets.front().shape = {kTokenIds};
  if (task_ == "regression") spec.targets.front().dtype = at::kDouble;
  return spec;
}

data::Sample Sentences::collate(std::vector<data::Sample> samples, const std::vector<std::int64_t>& indices) {
  return data::collate_padded(std::move(samples), indices, spec(), {.values = {{nn::kLabels, -100}}});
}

std::shared_ptr<const Task> task_for(const std::string& name) {
  return tasks::all_tasks().at(name).make(Sentences(name).spec());
}

TrainedOnSentences train_by_hand(const MakeModel& make_model, const std::string& task,
                                 std::shared_ptr<data::Dataset> data) {
  const auto model = make_model();
  nn::materialize(*model, kSeed, at::kDouble, at::kCPU);
  auto parameters = nn::parameters(*model);
  if (!data) data = std::make_shared<Sentences>(task);
  data::LoaderOptions options{.global_batch = kPerStep, .micro_batch = kPerStep};
  options.seed = kSeed;
  options.shuffle = true;
  options.dtype = at::kDouble;
  data::Loader loader(data, options);
  TrainedOnSentences result;
  for (std::int64_t step = 0; step < kTrainSteps; ++step) {
    loader.start_epoch(step / loader.steps_per_epoch(), step % loader.steps_per_epoch());
    const auto batch = loader.next()->micro.front();
    const nn::Context context{.training = true,
                              .seed = kSeed,
                              .step = step,
                              .sample_ids = batch.sample_ids,
                              .tokens = batch.inputs["input_ids"].size(1),
                              .side = model->side_inputs(batch.inputs)};
    const auto out = model->forward(model->first_inputs(batch.inputs), context).front();
    const auto loss = loss_by_hand(task, out, batch.targets[nn::kLabels]);
    loss.backward();
    result.losses.push_back(loss.item<double>());
    const at::NoGradGuard no_grad;
    for (auto& p : parameters) {
      if (!p.value.requires_grad()) continue;
      p.value.sub_(kRate * p.value.grad());
      p.value.mutable_grad() = at::Tensor();
    }
  }
  for (const auto& p : parameters) {
    result.weights[p.name] = p.value.detach().clone();
    if (!p.value.requires_grad()) result.frozen.insert(p.name);
  }
  return result;
}

void PrintTo(const TaskLayout& layout, std::ostream* out) { *out << layout.name; }

void expect_same_on_sentences(const TaskLayout& layout, const MakeModel& make_model, const nn::Policy& policy,
                              const std::string& task, const TrainedOnSentences& expected,
                              std::shared_ptr<data::Dataset> data) {
  if (!data) data = std::make_shared<Sentences>(task);
  Case c;
  c.plugin_name = layout.plugin;
  c.plugin = layout.keys;
  BoostOptions options;
  options.train.global_batch = kPerStep;
  options.train.micro_batch =
      layout.micro_batch == kUneven ? uneven_micro_batch(kPerStep, layout.inner) : layout.micro_batch;
  options.train.precision = "fp64";
  options.train.recompute = layout.recompute;
  options.train.recompute_modules = layout.recompute_modules;
  options.train.epochs = kTrainSteps;
  options.optimizer.method = optim::sgd();
  options.optimizer.lr = kRate;
  options.seed = kSeed;
  Booster booster(world(), make_plugin(c), options);
  BoostInputs inputs{.source = {.model = make_model()}, .task = task_for(task), .data = data};
  inputs.source.make = make_model;
  inputs.source.policy = policy;
  auto run = booster.boost(std::move(inputs));
  TrainedOnSentences got;
  for (std::int64_t step = 0; step < kTrainSteps; ++step) {
    run.loader->start_epoch(step / run.loader->steps_per_epoch(), step % run.loader->steps_per_epoch());
    got.losses.push_back(run.train_step(*run.loader->next()).loss.item<double>());
  }
  for (std::size_t step = 0; step < expected.losses.size(); ++step)
    EXPECT_NEAR(got.losses.at(step), expected.losses[step], kBound * expected.losses[step]) << "step " << step + 1;
  const auto weights = gathered(run.model->weights(), booster.mesh());
  const auto [worst, name] = distance(weights, expected.weights, kBound);
  EXPECT_LE(worst, 1) << "weight " << name;
  for (const auto& frozen : expected.frozen)
    EXPECT_TRUE(at::equal(weights.at(frozen), expected.weights.at(frozen))) << "frozen " << frozen << " has changed";

  // An evaluation does not depend on the batch size.
  const auto few = train::evaluate(run, *run.evaluation_loader(data, 3));
  const auto many = train::evaluate(run, *run.evaluation_loader(data, 7));
  EXPECT_EQ(few.samples, data->size());
  EXPECT_NEAR(few.loss, many.loss, kBound * few.loss);
  ASSERT_EQ(few.metrics.size(), task_for(task)->metrics().size());
  for (const auto& [metric, value] : few.metrics)
    EXPECT_NEAR(many.value(metric.name), value, kBound * std::abs(value)) << metric.name;
}

}  // namespace trireme::tests
