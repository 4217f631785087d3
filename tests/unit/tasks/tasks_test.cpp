// Losses, weights and metrics of the built-in tasks against formulas by hand, and the data that they refuse.
#include "tasks/tasks.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/binary_cross_entropy_with_logits.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/tensor.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>

#include "core/base/error.h"

namespace trireme::tasks {
namespace {

at::Tensor integers(const std::vector<std::int64_t>& values, at::IntArrayRef shape) {
  return at::tensor(values).view(shape);
}
at::Tensor reals(const std::vector<double>& values, at::IntArrayRef shape) { return at::tensor(values).view(shape); }
data::Batch batch_of(at::Tensor labels) {
  data::Batch batch;
  batch.targets = {{nn::kLabels, std::move(labels)}};
  return batch;
}
TaskOptions options_for(at::ScalarType dtype, std::vector<std::int64_t> shape, std::int64_t classes = 0) {
  return {.data = {.targets = {{nn::kLabels, dtype, std::move(shape)}}, .classes = classes, .ignored_labels = false}};
}
std::map<std::string, double> measured(const Task& task, const at::Tensor& output, const data::Batch& batch) {
  std::map<std::string, double> out;
  const auto sums = task.measure({output}, batch);
  std::size_t next = 0;
  for (const auto& metric : task.metrics()) {
    if (metric.of_loss) continue;
    const auto& [sum, weight] = sums.at(next++);
    EXPECT_EQ(sum.numel(), metric.entries) << metric.name;
    const auto occurs = weight.to(at::kDouble).ne(0);
    out[metric.name] = (sum.to(at::kDouble).masked_select(occurs) / weight.to(at::kDouble).masked_select(occurs))
                           .mean()
                           .item<double>();
  }
  return out;
}

TEST(Tasks, ClassificationOfSamples) {
  // Predictions 0, 1, 1, 2; labels 0, 1, 2, 2: F1 of the classes 1, 2/3, 2/3; class 3 does not occur.
  const auto logits = reals({3.0, 1, 0, 0, 0, 3, 1, 0, 0, 3, 2, 0, 0, 1, 3, 0}, {4, 4}).requires_grad_();
  const auto batch = batch_of(integers({0, 1, 2, 2}, {4}));
  auto options = options_for(at::kLong, {}, 4);
  options.label_smoothing = 0.1;
  options.topk = 2;
  const auto task = classification(options);
  EXPECT_FALSE(task->weight(batch).defined()) << "every sample counts one";
  const auto plain = at::cross_entropy_loss(logits, batch.targets[nn::kLabels]) * 4;
  const auto smooth = at::cross_entropy_loss(logits, batch.targets[nn::kLabels], {}, 1, -100, 0.1) * 4;
  EXPECT_NEAR(task->loss({logits}, batch, {}).item<double>(), smooth.item<double>(), 1e-6);
  EXPECT_NEAR(task->loss({logits}, batch, {.training = false}).item<double>(), plain.item<double>(), 1e-6);
  const auto values = measured(*task, logits, batch);
  EXPECT_DOUBLE_EQ(values.at("accuracy"), 0.75);
  EXPECT_DOUBLE_EQ(values.at("top_k"), 1);
  EXPECT_NEAR(values.at("f1"), (1 + 2.0 / 3 + 2.0 / 3) / 3, 1e-12);
  EXPECT_EQ(task->outputs(), 4);
  EXPECT_EQ(classification(options_for(at::kLong, {}, 6))->metrics().at(1).label, "top-5");
  EXPECT_EQ(classification(options_for(at::kLong, {}, 5))->metrics().at(1).label, "F1") << "top-5 would be 100 %";
}

TEST(Tasks, ClassesAreBalancedByTheTrainingSamples) {
  auto options = options_for(at::kLong, {}, 3);
  options.data.classes_of_training = [] { return std::vector<std::int64_t>{0, 0, -100, 0, 0, 1}; };
  const auto logits = reals({3.0, 1, 0, 0, 1, 2, 1, 1, 0}, {3, 3});
  const auto batch = batch_of(integers({0, 1, 2}, {3}));
  // 4 samples of class 0, 1 of class 1 and none of class 2, which counts as one.
  for (const auto& [balance, first, others] : {std::tuple{1.0, 5 / 8.0, 5 / 2.0}, {0.5, 5 / 6.0, 5 / 3.0}}) {
    options.balance_classes = balance;
    const auto task = classification(options);
    const auto weights = reals({first, others, others}, {3});
    EXPECT_DOUBLE_EQ(task->weight(batch).item<double>(), weights.sum().item<double>());
    EXPECT_DOUBLE_EQ(
        task->loss({logits}, batch, {}).item<double>(),
        at::cross_entropy_loss(logits, batch.targets[nn::kLabels], weights, at::Reduction::Sum).item<double>());
  }
  options.data.classes_of_training = [] { return std::vector<std::int64_t>(); };
  EXPECT_THROW(static_cast<void>(classification(options)), ConfigError);
}

TEST(Tasks, ClassificationOfTokensCountsThoseThatHaveALabel) {
  at::manual_seed(1);
  const auto logits = at::rand({2, 3, 5}, at::kDouble);
  const auto labels = integers({0, -100, 4, -100, -100, 2}, {2, 3});
  auto options = options_for(at::kLong, {3}, 5);
  const auto task = classification(options);
  EXPECT_EQ(task->weight(batch_of(labels)).item<double>(), 3);
  const auto expected = at::cross_entropy_loss(logits.view({6, 5}), labels.view({-1}), {}, /*sum*/ 2);
  EXPECT_NEAR(task->loss({logits}, batch_of(labels), {}).item<double>(), expected.item<double>(), 1e-12);
  const auto right = logits.argmax(-1).eq(labels).sum().item<double>();
  EXPECT_NEAR(measured(*task, logits, batch_of(labels)).at("accuracy"), right / 3, 1e-12);
  // Samples without a label do not count.
  options = options_for(at::kLong, {}, 5);
  options.data.ignored_labels = true;
  EXPECT_EQ(classification(options)->weight(batch_of(integers({1, -100}, {2}))).item<double>(), 1);
}

TEST(Tasks, AConfusionMatrixCountsLabelsThatCount) {
  auto options = options_for(at::kLong, {2}, 3);
  options.data.class_names = {"a", "b", "c"};
  const auto report = classification(options)->report();
  ASSERT_EQ(report->entries(), 3 * 4);
  // Predictions 0 1 / 1 3 / 1 2, where output 3 is no class of the data; labels 0 0 / 0 1 / 1 -100.
  const auto logits = reals({9, 0, 0, 0, 0, 9, 0, 0, 0, 9, 0, 0, 0, 0, 0, 9, 0, 9, 0, 0, 0, 0, 9, 0}, {3, 2, 4});
  const auto totals = report->measure({logits}, batch_of(integers({0, 0, 0, 1, 1, -100}, {3, 2})));
  const auto json = report->json(totals);
  EXPECT_EQ(json["matrix"], (nlohmann::json{{1, 2, 0}, {0, 1, 0}, {0, 0, 0}}));
  EXPECT_EQ(json["by_class"][1], (nlohmann::json{{"class", "b"},
                                                 {"samples", 2},
                                                 {"predicted", 3},
                                                 {"accuracy", 0.5},
                                                 {"precision", 1.0 / 3},
                                                 {"f1", 2.0 / 5}}));
  EXPECT_TRUE(json["by_class"][2]["accuracy"].is_null()) << "no sample is of class c";
  EXPECT_EQ(report->text(totals),
            "class  samples  accuracy  precision      F1  most often taken for\n"
            "a            3    33.3 %    100.0 %  50.0 %  b (2)\n"
            "b            2    50.0 %     33.3 %  40.0 %  -\n"
            "c            0         -          -       -  -\n"
            "actual, by predicted class  0  1  2\n"
            "0 a                         1  2  0\n"
            "1 b                         0  1  0\n"
            "2 c                         0  0  0");
  options.data.class_names = {"a", "b", "a"};
  const auto alike = classification(options)->report();
  EXPECT_EQ(alike->json(totals)["classes"], (nlohmann::json{"a (0)", "b", "a (2)"}));
  EXPECT_NE(alike->text(totals).find("\na (2) "), std::string::npos) << alike->text(totals);
  EXPECT_EQ(regression(options_for(at::kFloat, {}))->report(), nullptr);
}

TEST(Tasks, ACausalModelPredictsTheNextToken) {
  at::manual_seed(2);
  const auto logits = at::rand({2, 4, 6}, at::kDouble);
  const auto labels = integers({1, 2, 3, 4, 5, 0, -100, -100}, {2, 4});
  const auto causal = causal_lm(options_for(at::kLong, {4})), masked = masked_lm(options_for(at::kLong, {4}));
  const auto sum = [&](const at::Tensor& out, const at::Tensor& of) {
    return at::cross_entropy_loss(out.reshape({-1, 6}), of.reshape({-1}), {}, 2).item<double>();
  };
  EXPECT_EQ(causal->weight(batch_of(labels)).item<double>(), 4);
  EXPECT_EQ(masked->weight(batch_of(labels)).item<double>(), 6);
  EXPECT_NEAR(causal->loss({logits}, batch_of(labels), {}).item<double>(),
              sum(logits.narrow(1, 0, 3), labels.narrow(1, 1, 3)), 1e-12);
  EXPECT_NEAR(masked->loss({logits}, batch_of(labels), {}).item<double>(), sum(logits, labels), 1e-12);
  const auto perplexity = causal->metrics().front();
  EXPECT_TRUE(perplexity.name == "perplexity" && perplexity.of_loss && !perplexity.higher_is_better);
  EXPECT_DOUBLE_EQ(perplexity.of_mean(2), std::exp(2.0));
  const auto right = logits.narrow(1, 0, 3).argmax(-1).eq(labels.narrow(1, 1, 3)).sum().item<double>();
  EXPECT_NEAR(measured(*causal, logits, batch_of(labels)).at("accuracy"), right / 4, 1e-12);
}

TEST(Tasks, MultiLabelAndRegressionAreMeansOverASample) {
  const auto logits = reals({1.0, -1, 2, -3, 0.5, -0.5}, {2, 3});
  const auto labels = integers({1, 0, 0, 0, 1, 1}, {2, 3});
  const auto multi = multi_label(options_for(at::kLong, {3}, 2));
  const auto expected = at::binary_cross_entropy_with_logits(logits, labels.to(at::kDouble)) * 2;
  EXPECT_NEAR(multi->loss({logits}, batch_of(labels), {}).item<double>(), expected.item<double>(), 1e-12);
  auto values = measured(*multi, logits, batch_of(labels));  // true 2, predicted 3, actual 3
  EXPECT_DOUBLE_EQ(values.at("f1"), 4.0 / 6);
  EXPECT_DOUBLE_EQ(values.at("accuracy"), 4.0 / 6);
  EXPECT_EQ(multi->outputs(), 3);
  for (const std::int64_t bad : {-100, 2})
    EXPECT_THROW(multi->loss({logits}, batch_of(integers({1, 0, bad, 0, 1, 1}, {2, 3})), {}), DataError) << bad;

  const auto task = regression(options_for(at::kFloat, {}));
  const auto wanted = reals({1, 5}, {2}), predicted = reals({2.0, 2.0}, {2, 1});
  EXPECT_DOUBLE_EQ(task->loss({predicted}, batch_of(wanted), {}).item<double>(), 1 + 9);
  EXPECT_DOUBLE_EQ(measured(*task, predicted, batch_of(wanted)).at("mean_absolute_error"), 2);
  EXPECT_EQ(task->outputs(), 1);
  EXPECT_EQ(task->problem_type(), "regression");
}

TEST(Tasks, AnEmptyBatchHasALossWithAGraph) {
  for (const auto& name : all_tasks().names()) {
    SCOPED_TRACE(name);
    const bool tokens = name.ends_with("_lm"), floats = name == "regression";
    const auto logits =
        at::rand(tokens ? at::IntArrayRef({0, 3, 4}) : at::IntArrayRef({0, 4}), at::kDouble).requires_grad_();
    auto labels = at::rand(tokens ? at::IntArrayRef({0, 3}) : at::IntArrayRef({0, 4}), at::kDouble);
    if (name == "classification") labels = labels.narrow(1, 0, 1).squeeze(1);
    const auto batch = batch_of(floats || name == "multi_label" ? labels : labels.to(at::kLong));
    const auto task = all_tasks().at(name).make({});
    const auto loss = task->loss({logits}, batch, {});
    EXPECT_EQ(loss.item<double>(), 0);
    loss.backward();
    EXPECT_TRUE(logits.grad().defined());
    if (const auto weight = task->weight(batch); weight.defined()) {
      EXPECT_EQ(weight.item<double>(), 0);
    }
  }
}

TEST(Tasks, RefuseUnsuitableLabels) {
  const auto says = [](const std::string& name, const TaskOptions& options) -> std::string {
    try {
      if (options.label_smoothing > 0)
        regression(options);
      else
        all_tasks().at(name).make(options.data);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(
      says("classification", options_for(at::kFloat, {})),
      "train.task: \"classification\" needs labels of one class for each sample [] or each token [T], but the data "
      "have labels float32 [] for each sample; choose another train.task");
  EXPECT_EQ(says("classification", options_for(at::kLong, {}, 1)), "only one class; a classifier needs at least two");
  EXPECT_EQ(says("causal_lm", options_for(at::kLong, {}, 7)),
            "train.task: \"causal_lm\" needs a label for each token [T], but the data have labels int64 [] for each "
            "sample; choose another train.task");
  EXPECT_NE(says("regression", options_for(at::kLong, {}, 7)), "");
  EXPECT_NE(says("multi_label", options_for(at::kLong, {}, 7)), "");
  EXPECT_EQ(says("regression", {.data = {}, .label_smoothing = 0.1}),
            "train.label_smoothing: has no meaning for task = \"regression\"; remove it");
  auto copied = options_for(at::kLong, {4}, 7);
  copied.data.labels_are_inputs = true;
  EXPECT_EQ(says("causal_lm", copied), "");
  for (const std::string task : {"masked_lm", "classification"})
    EXPECT_EQ(
        says(task, copied),
        "train.task: \"" + task +
            "\" would learn to copy: the labels of these data are the tokens themselves, each to be predicted from "
            "those before it; set train.task = \"causal_lm\", with gpt2, llama or qwen3, or choose other data");
  EXPECT_EQ(says("masked_lm", {.data = {.targets = {{"next", at::kLong, {3}}}}}),
            "train.task: \"masked_lm\" needs a label for each token [T], but the data have no labels; choose another "
            "train.task");
}

}  // namespace
}  // namespace trireme::tasks
