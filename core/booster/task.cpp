#include "core/booster/task.h"

#include "core/base/error.h"

namespace trireme {
namespace {

class CriterionTask final : public Task {
 public:
  CriterionTask(Criterion criterion, std::function<at::Tensor(const data::Batch&)> weight)
      : criterion_(std::move(criterion)), weight_(std::move(weight)) {}
  at::Tensor weight(const data::Batch& batch) const override { return weight_ ? weight_(batch) : at::Tensor(); }
  at::Tensor loss(const nn::Tensors& outputs, const data::Batch& batch, const LossOptions&) const override {
    return criterion_(outputs, batch);
  }

 private:
  Criterion criterion_;
  std::function<at::Tensor(const data::Batch&)> weight_;
};

}  // namespace

void check_combined(const Task& task, const std::vector<nn::SampleTensor>& targets) {
  for (const auto& target : targets)
    if (target.name == nn::kMixedLabels && !task.takes_mixed_labels())
      throw ConfigError(
          "the training samples are mixed from two and have two labels (data.mixup, data.cutmix), but the task reads "
          "one; turn mixing off, or choose train.task = \"classification\"");
}

std::shared_ptr<const Task> task_of(Criterion criterion, std::function<at::Tensor(const data::Batch&)> weight) {
  return std::make_shared<CriterionTask>(std::move(criterion), std::move(weight));
}

}  // namespace trireme
