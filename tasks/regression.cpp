#include <ATen/TensorOperators.h>
#include <ATen/core/Reduction.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mse_loss.h>
#include <fmt/ranges.h>

#include "core/base/error.h"
#include "tasks/class_labels.h"
#include "tasks/tasks.h"

namespace trireme::tasks {
namespace {

class Regression final : public Task {
 public:
  explicit Regression(const TaskOptions& options) : outputs_(options.data.classes) {
    if (options.label_smoothing != 0)
      throw ConfigError("train.label_smoothing: has no meaning for task = \"regression\"; remove it");
    const auto* labels = checked_labels(options, false, {0, 1}, "regression", "floating-point labels [] or [K]");
    if (labels != nullptr) outputs_ = labels->shape.empty() ? 1 : labels->shape.front();
  }

  /// A sample's loss is the mean over its numbers.
  at::Tensor loss(const nn::Tensors& outputs, const data::Batch& batch, const LossOptions&) const override {
    const auto predicted = in_full_precision(outputs.front());
    const auto labels = targets(predicted, batch);
    return at::mse_loss(predicted, labels, at::Reduction::Sum) / targets_per_sample(labels);
  }

  std::vector<Metric> metrics() const override {
    return {
        {.name = "mean_absolute_error", .label = "mean absolute error", .higher_is_better = false, .fraction = false}};
  }
  std::vector<MetricSums> measure(const nn::Tensors& outputs, const data::Batch& batch) const override {
    const auto predicted = in_full_precision(outputs.front());
    const auto labels = targets(predicted, batch);
    const auto count = at::full({}, static_cast<double>(labels.numel()), labels.options().dtype(at::kDouble));
    return {{(predicted - labels).abs().sum(), count}};
  }
  at::Tensor predictions(const nn::Tensors& outputs) const override { return in_full_precision(outputs.front()); }
  std::int64_t outputs() const override { return outputs_; }
  std::string problem_type() const override { return "regression"; }

 private:
  /// A sample's numbers.
  static double targets_per_sample(const at::Tensor& labels) {
    return static_cast<double>(labels.size(0) == 0 ? 1 : labels.numel() / labels.size(0));
  }
  /// In the shape of the outputs: [B] for outputs [B, 1].
  static at::Tensor targets(const at::Tensor& predicted, const data::Batch& batch) {
    const auto& labels = batch.targets[nn::kLabels];
    TRIREME_REQUIRE(predicted.numel() == labels.numel() && predicted.size(0) == labels.size(0),
                    "regression takes as many outputs as labels, not [{}] and [{}]", fmt::join(predicted.sizes(), ", "),
                    fmt::join(labels.sizes(), ", "));
    return labels.reshape(predicted.sizes()).to(predicted.scalar_type());
  }
  std::int64_t outputs_;
};

}  // namespace

std::shared_ptr<const Task> regression(const TaskOptions& options) { return std::make_shared<Regression>(options); }

}  // namespace trireme::tasks
