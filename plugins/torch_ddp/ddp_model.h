// DdpModel: a replicated model whose gradients are summed over the ranks of a group during the backward pass.
#pragma once

#include <memory>
#include <vector>

#include "core/booster/gradient_reducer.h"
#include "core/booster/local_model.h"
#include "plugins/options.h"

namespace trireme::plugins {

class DdpModel : public LocalModel {
 public:
  DdpModel(std::shared_ptr<nn::Model> model, std::vector<nn::Parameter> parameters, const BoostOptions& options,
           const TorchDdpOptions& ddp, c10::Device device, const comm::Group& group);
  nn::Tensors forward(const data::Batch& batch) override;
  ScopeGuard no_sync() override { return reducer_->no_sync(); }

 private:
  std::shared_ptr<GradientReducer> reducer_;
};

}  // namespace trireme::plugins
