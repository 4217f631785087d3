#include "core/booster/task.h"

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

std::shared_ptr<const Task> task_of(Criterion criterion, std::function<at::Tensor(const data::Batch&)> weight) {
  return std::make_shared<CriterionTask>(std::move(criterion), std::move(weight));
}

}  // namespace trireme
