// TaskCriterion: the loss of a task as the Criterion of a boosted model.
#pragma once

#include <fmt/format.h>

#include <memory>
#include <utility>

#include "core/base/error.h"
#include "core/booster/task.h"

namespace trireme {

/// The loss in training.
class TaskCriterion {
 public:
  /// `sharded`: computes the cross-entropy of logits of which the ranks hold parts; null if they are complete.
  TaskCriterion(std::shared_ptr<const Task> task, nn::CrossEntropy sharded)
      : task_(std::move(task)),
        is_sharded_(sharded != nullptr),
        cross_entropy_(is_sharded_ ? std::move(sharded) : nn::CrossEntropy(nn::cross_entropy)) {}

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

  /// The same for outputs that nobody else reads: the backward pass may overwrite them (nn::CrossEntropyOptions).
  [[nodiscard]] TaskCriterion overwriting() const {
    auto out = *this;
    out.overwrites_ = task_->takes_sharded_logits();
    return out;
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
  bool overwrites_ = false;
};

}  // namespace trireme
