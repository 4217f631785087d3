#include "plugins/torch_ddp/ddp_model.h"

#include <ATen/core/grad_mode.h>

#include "core/nn/block.h"
#include "plugins/compare_gradients.h"

namespace trireme::plugins {
namespace {

ReducerOptions reducer_options(const TorchDdpOptions& ddp) {
  return {.bucket_cap_mb = ddp.bucket_cap_mb,
          .find_unused_parameters = ddp.find_unused_parameters,
          .gradient_as_bucket_view = ddp.gradient_as_bucket_view,
          .static_graph = ddp.static_graph};
}

GradientReducer::Use use_of(const TorchDdpOptions& ddp) {
  // Gradients are parts of the mean over the global batch, so they are summed.
  GradientReducer::Use use{.op = comm::ReduceOp::sum,
                           .name = "plugin.torch_ddp",
                           .option_prefix = "plugin.torch_ddp.",
                           .none_left = "optimizer.freeze: every parameter is frozen; nothing is left to train"};
  if (ddp.check_reduction)
    use.on_reduced = [](const GradientReducer& reducer) {
      std::vector<at::Tensor> gradients;
      for (const auto& p : reducer.parameters()) gradients.push_back(p.grad());
      compare_gradients(reducer.group(), "plugin.torch_ddp.check_reduction", reducer.names(), gradients);
    };
  return use;
}

}  // namespace

DdpModel::DdpModel(std::shared_ptr<nn::Model> model, std::vector<nn::Parameter> parameters, const BoostOptions& options,
                   const TorchDdpOptions& ddp, c10::Device device, const comm::Group& group)
    : LocalModel(std::move(model), std::move(parameters), options, device),
      reducer_(std::make_shared<GradientReducer>(this->parameters(), reducer_options(ddp), group, use_of(ddp))) {}

nn::Tensors DdpModel::forward(const data::Batch& batch) {
  if (!training() || !at::GradMode::is_enabled()) return LocalModel::forward(batch);
  reducer_->prepare_forward();
  auto outputs = LocalModel::forward(batch);
  reducer_->prepare_backward(outputs);
  return outputs;
}

}  // namespace trireme::plugins
