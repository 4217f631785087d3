#include <ATen/TensorOperators.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/nn/layers/index_checks.h"
#include "tasks/class_labels.h"
#include "tasks/tasks.h"

namespace trireme::tasks {
namespace {

constexpr std::int64_t kMostReported = 5000;  ///< classes of a confusion matrix: 200 MB

/// The sums of macro F1 = 2 TP / (2 TP + FP + FN) of each class.
MetricSums measure_f1(const at::Tensor& logits, const at::Tensor& labels, std::int64_t classes) {
  const auto valid = labels.ne(nn::kNoLabel).to(at::kDouble).flatten();
  const auto actual = labels.flatten(), predicted = logits.argmax(-1).flatten();
  // A program's model may have more outputs than the data have classes: others count nothing here.
  const auto count = [&](const at::Tensor& of, const at::Tensor& weights) {
    const auto known = of.ge(0).logical_and(of.lt(classes)).to(at::kDouble);
    return at::zeros({classes}, valid.options()).scatter_add_(0, of.clamp(0, classes - 1), weights * known);
  };
  return {2 * count(actual, valid * predicted.eq(actual)), count(actual, valid) + count(predicted, valid)};
}

/// n / (classes * n of the class) for balance_classes = 1, as scikit-learn's "balanced".
at::Tensor balanced_weights(const TaskOptions& options) {
  const auto& read = options.data.classes_of_training;
  if (!read)
    throw ConfigError(
        "train.balance_classes: needs one source of data whose samples are all in each epoch; with "
        "[[data.mix]] give class_weights, and with data.balance_classes remove one of the two");
  const auto classes = read();
  if (classes.empty())
    throw ConfigError("train.balance_classes: needs training samples with one class each; remove it");
  std::vector<double> counted(static_cast<std::size_t>(options.data.classes));
  for (const auto label : classes)
    if (label != nn::kNoLabel) ++counted.at(static_cast<std::size_t>(label));
  const auto counts = at::tensor(counted, at::kDouble);
  const auto weights = counts.clamp_min(1).pow(-options.balance_classes);  // only an evaluation has the other classes
  return weights * counts.sum() / (weights * counts).sum();
}

class Classification final : public Task {
 public:
  explicit Classification(const TaskOptions& options) : options_(options), classes_(options.data.classes) {
    const auto* labels = checked_labels(options, true, {0, 1}, "classification",
                                        "labels of one class for each sample [] or each token [T]");
    if (!options.class_weights.empty()) class_weights_ = at::tensor(options.class_weights, at::kDouble);
    if (options.balance_classes > 0 && labels != nullptr) class_weights_ = balanced_weights(options);
    if (class_weights_.defined() && class_weights_.sum().item<double>() == 0)
      throw ConfigError(
          "train.class_weights: all are 0, so that nothing would count; give at least one class a weight");
    if (labels == nullptr) return;
    if (class_weights_.defined() && class_weights_.numel() != classes_)
      throw ConfigError(
          fmt::format("train.class_weights: has {} values for {} classes; give one for each class{}",
                      class_weights_.numel(), classes_,
                      options.data.class_names.empty()
                          ? std::string()
                          : fmt::format(", in this order: {}", text::first_few(options.data.class_names))));
    // When every sample has exactly one label that counts, the weight of a batch is the number of its samples.
    counts_samples_ = labels->shape.empty() && !options.data.ignored_labels;
    const auto& names = options.data.class_names;
    if (classes_ == 1)
      throw DataError(fmt::format("only one class{}; a classifier needs at least two",
                                  names.size() == 1 ? fmt::format(", \"{}\"", names.front()) : std::string()));
  }

  at::Tensor weight(const data::Batch& batch) const override {
    if (counts_samples_ && !class_weights_.defined()) return {};
    const auto target = target_of(batch);
    if (class_weights_.defined()) nn::check_labels(target.labels, class_weights_.numel());
    return nn::label_factors(target.labels, {.class_weights = class_weights_, .shares = target.shares}, at::kDouble)
        .sum();
  }
  at::Tensor loss(const nn::Tensors& outputs, const data::Batch& batch, const LossOptions& how) const override {
    const auto target = target_of(batch);
    return how.cross_entropy(outputs.front(), target.labels,
                             {.label_smoothing = how.training ? options_.label_smoothing : 0,
                              .class_weights = class_weights_,
                              .shares = target.shares});
  }
  bool takes_sharded_logits() const override { return true; }
  bool takes_mixed_labels() const override { return true; }

  std::vector<Metric> metrics() const override {
    std::vector<Metric> all{{"accuracy", "accuracy"}};
    if (k() > 1) all.push_back({.name = "top_k", .label = fmt::format("top-{}", k()), .parameters = {{"k", k()}}});
    if (classes_ > 0) all.push_back({.name = "f1", .label = "F1", .entries = classes_});
    return all;
  }
  std::vector<MetricSums> measure(const nn::Tensors& outputs, const data::Batch& batch) const override {
    const auto& labels = batch.targets[nn::kLabels];
    auto sums = measure_accuracy(outputs.front(), labels, k());
    if (classes_ > 0) sums.push_back(measure_f1(outputs.front(), labels, classes_));
    return sums;
  }
  std::unique_ptr<const TaskReport> report() const override {
    if (classes_ > kMostReported)
      throw ConfigError(fmt::format("--report: there are {} classes, and a confusion matrix is made of at most {}",
                                    classes_, kMostReported));
    return classes_ > 0 ? confusion_matrix(classes_, options_.data.class_names) : nullptr;
  }
  at::Tensor predictions(const nn::Tensors& outputs) const override {
    const auto logits = in_full_precision(outputs.front());
    return logits.dim() == 2 ? logits.softmax(-1) : at::Tensor();
  }
  std::int64_t outputs() const override { return classes_; }

 private:
  struct Target {
    at::Tensor labels, shares;  ///< as nn::cross_entropy() takes them
  };
  static Target target_of(const data::Batch& batch) {
    const auto& own = batch.targets[nn::kLabels];
    const auto* mixed = batch.targets.find(nn::kMixedLabels);
    if (mixed == nullptr) return {own, {}};
    const auto& share = batch.targets[nn::kLabelShares];
    return {at::stack({own, *mixed}, -1), at::stack({share, 1 - share}, -1)};
  }
  /// 1 where every sample would be among the k highest.
  [[nodiscard]] std::int64_t k() const { return classes_ > options_.topk ? options_.topk : 1; }
  TaskOptions options_;
  std::int64_t classes_;
  at::Tensor class_weights_;  ///< float64 [classes] on the CPU, or undefined
  bool counts_samples_ = false;
};

}  // namespace

std::shared_ptr<const Task> classification(const TaskOptions& options) {
  return std::make_shared<Classification>(options);
}

}  // namespace trireme::tasks
