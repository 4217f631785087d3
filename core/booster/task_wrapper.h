// TaskWrapper: a task that changes another one. A class derived from it overrides what it changes; everything else is
// the other task's.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/booster/task.h"

namespace trireme {

class TaskWrapper : public Task {
 public:
  [[nodiscard]] at::Tensor weight(const data::Batch& batch) const override { return task_->weight(batch); }
  [[nodiscard]] at::Tensor loss(const nn::Tensors& outputs, const data::Batch& batch,
                                const LossOptions& options) const override {
    return task_->loss(outputs, batch, options);
  }
  [[nodiscard]] bool takes_sharded_logits() const override { return task_->takes_sharded_logits(); }
  [[nodiscard]] bool takes_mixed_labels() const override { return task_->takes_mixed_labels(); }
  [[nodiscard]] std::vector<Metric> metrics() const override { return task_->metrics(); }
  [[nodiscard]] std::vector<MetricSums> measure(const nn::Tensors& outputs, const data::Batch& batch) const override {
    return task_->measure(outputs, batch);
  }
  [[nodiscard]] std::unique_ptr<const TaskReport> report() const override { return task_->report(); }
  [[nodiscard]] at::Tensor predictions(const nn::Tensors& outputs) const override {
    return task_->predictions(outputs);
  }
  [[nodiscard]] std::int64_t outputs() const override { return task_->outputs(); }
  [[nodiscard]] std::string problem_type() const override { return task_->problem_type(); }

 protected:
  /// @pre not null
  explicit TaskWrapper(std::shared_ptr<const Task> task) : task_(std::move(task)) {}

 private:
  std::shared_ptr<const Task> task_;
};

}  // namespace trireme
