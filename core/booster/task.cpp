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

/// The loss of a task in training.
class TaskCriterion {
 public:
  /// `overwrites`: nobody else reads the outputs, so that the backward pass may overwrite them.
  TaskCriterion(std::shared_ptr<const Task> task, nn::CrossEntropy sharded, bool overwrites)
      : task_(std::move(task)),
        is_sharded_(sharded != nullptr),
        cross_entropy_(is_sharded_ ? std::move(sharded) : nn::CrossEntropy(nn::cross_entropy)),
        overwrites_(overwrites) {}

  at::Tensor operator()(const nn::Tensors& outputs, const data::Batch& batch) const {
    int calls = 0;
    const Task::LossOptions how{
        .cross_entropy = [&](const at::Tensor& logits, const at::Tensor& labels, nn::CrossEntropyOptions options) {
          ++calls;
          options.overwrite = overwrites_;
          return cross_entropy_(logits, labels, options);
        }};
    if (!is_sharded_) return task_->loss(outputs, batch, how);
    at::Tensor loss;
    try {
      loss = task_->loss(outputs, batch, how);
    } catch (const DataError&) {  // possibly labels that are outside this rank's classes
      check_one(calls);
      throw;
    }
    check_one(calls);
    return loss;
  }

 private:
  /// Only the plugin's cross-entropy can interpret parts of the logits.
  static void check_one(int calls) {
    if (calls == 1) return;
    throw ConfigError(fmt::format(
        "Task::takes_sharded_logits() is true, but loss() called LossOptions::cross_entropy {} times instead "
        "of once; call it once, or return false to get complete logits",
        calls));
  }
  std::shared_ptr<const Task> task_;
  bool is_sharded_;
  nn::CrossEntropy cross_entropy_;
  bool overwrites_;
};

}  // namespace

void check_combined(const Task& task, const std::vector<nn::SampleTensor>& targets) {
  for (const auto& target : targets)
    if (target.name == nn::kMixedLabels && !task.takes_mixed_labels())
      throw ConfigError(
          "the training samples are mixed from two and have two labels (data.mixup, data.cutmix), but the task reads "
          "one; turn mixing off, or choose train.task = \"classification\"");
}

Criterion training_criterion(std::shared_ptr<const Task> task, nn::CrossEntropy sharded) {
  const bool overwrites = task->takes_sharded_logits();
  return {TaskCriterion(task, sharded, false), TaskCriterion(task, sharded, overwrites)};
}

std::shared_ptr<const Task> task_of(Criterion criterion, std::function<at::Tensor(const data::Batch&)> weight) {
  return std::make_shared<CriterionTask>(std::move(criterion), std::move(weight));
}

}  // namespace trireme
