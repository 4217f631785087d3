#include <ATen/TensorOperators.h>
#include <ATen/core/Reduction.h>
#include <ATen/ops/binary_cross_entropy_with_logits.h>
#include <ATen/ops/full.h>
#include <fmt/ranges.h>

#include "core/base/error.h"
#include "tasks/class_labels.h"
#include "tasks/tasks.h"

namespace trireme::tasks {
namespace {

class MultiLabel final : public Task {
 public:
  explicit MultiLabel(const TaskOptions& options) : smoothing_(options.label_smoothing) {
    if (options.data.targets.empty()) return;
    const auto* labels = options.data.target(nn::kLabels);
    const bool integers = labels != nullptr && at::isIntegralType(labels->dtype, /*includeBool=*/true);
    labels = checked_labels(options, integers, {1}, "multi_label", "0 or 1 for each of C labels [C]");
    if (labels->varies())
      throw ConfigError("train.task: \"multi_label\" needs the same number of labels for each sample");
    outputs_ = labels->shape.front();
  }

  /// A sample's loss is the mean over its labels.
  at::Tensor loss(const nn::Tensors& outputs, const data::Batch& batch, const LossOptions& how) const override {
    const auto& logits = outputs.front();
    auto labels = targets(outputs, batch);
    if (how.training) labels = labels * (1 - smoothing_) + smoothing_ / 2;
    return at::binary_cross_entropy_with_logits(logits, labels, {}, {}, at::Reduction::Sum) /
           static_cast<double>(std::max<std::int64_t>(1, logits.size(-1)));
  }

  std::vector<Metric> metrics() const override { return {{"f1", "F1"}, {"accuracy", "accuracy"}}; }
  std::vector<MetricSums> measure(const nn::Tensors& outputs, const data::Batch& batch) const override {
    const auto actual = targets(outputs, batch).gt(0.5), predicted = outputs.front().gt(0);
    const auto all = at::full({}, static_cast<double>(actual.numel()), actual.options().dtype(at::kDouble));
    return {{2 * actual.logical_and(predicted).sum(), actual.sum() + predicted.sum()},
            {actual.eq(predicted).sum(), all}};
  }
  std::int64_t outputs() const override { return outputs_; }
  std::string problem_type() const override { return "multi_label_classification"; }

 private:
  static at::Tensor targets(const nn::Tensors& outputs, const data::Batch& batch) {
    const auto& logits = outputs.front();
    const auto& labels = batch.targets[nn::kLabels];
    TRIREME_REQUIRE(logits.sizes() == labels.sizes(),
                    "multi_label takes outputs and labels of one shape, not [{}] and [{}]",
                    fmt::join(logits.sizes(), ", "), fmt::join(labels.sizes(), ", "));
    return labels.to(logits.scalar_type());
  }
  double smoothing_;
  std::int64_t outputs_ = 0;
};

}  // namespace

std::shared_ptr<const Task> multi_label(const TaskOptions& options) { return std::make_shared<MultiLabel>(options); }

}  // namespace trireme::tasks
