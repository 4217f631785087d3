#include "core/booster/task.h"

#include "core/base/error.h"
#include "core/nn/layers/linear_cross_entropy.h"

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

/// Of logits that loss() does not see as they are. @throws ConfigError
void check_one_call(int calls) {
  if (calls == 1) return;
  throw ConfigError(
      fmt::format("Task::takes_sharded_logits() is true, but loss() called LossOptions::cross_entropy {} times instead "
                  "of once; call it once, or return false to get complete logits",
                  calls));
}

/// The loss of a task by `cross_entropy`, which must compute all of it. @throws ConfigError
at::Tensor loss_by(const Task& task, const nn::Tensors& outputs, const data::Batch& batch,
                   const nn::CrossEntropy& cross_entropy) {
  int calls = 0;
  const Task::LossOptions how{
      .cross_entropy = [&](const at::Tensor& logits, const at::Tensor& labels, const nn::CrossEntropyOptions& options) {
        ++calls;
        return cross_entropy(logits, labels, options);
      }};
  at::Tensor loss;
  try {
    loss = task.loss(outputs, batch, how);
  } catch (const DataError&) {  // possibly labels that are outside this rank's classes
    check_one_call(calls);
    throw;
  }
  check_one_call(calls);
  return loss;
}

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
    const nn::CrossEntropy cross_entropy = [this](const at::Tensor& logits, const at::Tensor& labels,
                                                  nn::CrossEntropyOptions options) {
      options.overwrite = overwrites_;
      return cross_entropy_(logits, labels, options);
    };
    // Only the plugin's cross-entropy can interpret parts of the logits.
    return is_sharded_ ? loss_by(*task_, outputs, batch, cross_entropy)
                       : task_->loss(outputs, batch, {.cross_entropy = cross_entropy});
  }

 private:
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
  Criterion::Released released;
  if (task->takes_sharded_logits())
    released = {.overwriting = TaskCriterion(task, sharded, /*overwrites=*/true),
                .of_head = [task](const nn::Head& head, const data::Batch& batch) {
                  return loss_by(
                      *task, {at::Tensor()}, batch,
                      [&](const at::Tensor&, const at::Tensor& labels, const nn::CrossEntropyOptions& options) {
                        return nn::linear_cross_entropy(head, labels, options);
                      });
                }};
  return {TaskCriterion(std::move(task), std::move(sharded), /*overwrites=*/false), std::move(released)};
}

std::shared_ptr<const Task> task_of(Criterion criterion, std::function<at::Tensor(const data::Batch&)> weight) {
  return std::make_shared<CriterionTask>(std::move(criterion), std::move(weight));
}

}  // namespace trireme
