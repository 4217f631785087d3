#include <ATen/TensorOperators.h>
#include <ATen/core/Reduction.h>
#include <ATen/ops/_assert_async.h>
#include <ATen/ops/binary_cross_entropy_with_logits.h>
#include <ATen/ops/full.h>
#include <fmt/ranges.h>

#include "core/base/error.h"
#include "tasks/class_labels.h"
#include "tasks/tasks.h"

namespace trireme::tasks {
namespace {

/// On a GPU the host does not wait, and a failure is a device-side assertion.
void check_between_0_and_1(const at::Tensor& labels) {
  const auto good = labels.ge(0).logical_and(labels.le(1)).all();
  const char* message = "task \"multi_label\": a label is neither 0 nor 1, nor between them";
  if (!labels.is_cpu()) return at::_assert_async(good, message);
  if (!good.item<bool>()) throw DataError(message);
}

class MultiLabel final : public Task {
 public:
  explicit MultiLabel(const TaskOptions& options)
      : smoothing_(options.label_smoothing), outputs_(options.data.classes) {
    if (options.data.targets.empty()) return;
    const auto* given = options.data.target(nn::kLabels);
    auto like = options;  // integers, booleans and floating point are all good
    if (given != nullptr)
      for (auto& target : like.data.targets) target.dtype = at::kLong;
    const auto* labels = checked_labels(like, true, {1}, "multi_label", "0 or 1 for each of C labels [C]");
    if (labels->varies())
      throw ConfigError("train.task: \"multi_label\" needs the same number of labels for each sample");
    outputs_ = labels->shape.front();
  }

  /// A sample's loss is the mean over its labels.
  at::Tensor loss(const nn::Tensors& outputs, const data::Batch& batch, const LossOptions& how) const override {
    const auto logits = in_full_precision(outputs.front());
    auto labels = targets(logits, batch);
    if (how.training) labels = labels * (1 - smoothing_) + smoothing_ / 2;
    return at::binary_cross_entropy_with_logits(logits, labels, {}, {}, at::Reduction::Sum) /
           static_cast<double>(std::max<std::int64_t>(1, logits.size(-1)));
  }

  std::vector<Metric> metrics() const override { return {{"f1", "F1"}, {"accuracy", "accuracy"}}; }
  std::vector<MetricSums> measure(const nn::Tensors& outputs, const data::Batch& batch) const override {
    const auto actual = targets(outputs.front(), batch).gt(0.5), predicted = outputs.front().gt(0);
    const auto all = at::full({}, static_cast<double>(actual.numel()), actual.options().dtype(at::kDouble));
    return {{2 * actual.logical_and(predicted).sum(), actual.sum() + predicted.sum()},
            {actual.eq(predicted).sum(), all}};
  }
  at::Tensor predictions(const nn::Tensors& outputs) const override {
    return in_full_precision(outputs.front()).sigmoid();
  }
  std::int64_t outputs() const override { return outputs_; }
  std::string problem_type() const override { return "multi_label_classification"; }

 private:
  static at::Tensor targets(const at::Tensor& logits, const data::Batch& batch) {
    const auto& labels = batch.targets[nn::kLabels];
    TRIREME_REQUIRE(logits.sizes() == labels.sizes(),
                    "multi_label takes outputs and labels of one shape, not [{}] and [{}]",
                    fmt::join(logits.sizes(), ", "), fmt::join(labels.sizes(), ", "));
    check_between_0_and_1(labels);
    return labels.to(logits.scalar_type());
  }
  double smoothing_;
  std::int64_t outputs_;
};

}  // namespace

std::shared_ptr<const Task> multi_label(const TaskOptions& options) { return std::make_shared<MultiLabel>(options); }

}  // namespace trireme::tasks
