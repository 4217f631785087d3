#include "core/accelerate/ddp.h"

#include <ATen/core/grad_mode.h>

#include "core/base/error.h"

namespace trireme {
namespace {

/// Makes the values those of rank 0.
void copy_from_first(const comm::Group& group, const std::vector<at::Tensor>& tensors) {
  const at::NoGradGuard no_grad;
  std::vector<comm::Work> sent;
  for (const auto& tensor : tensors) sent.push_back(group.broadcast_async(tensor.detach(), 0));
  for (auto& work : sent) work.wait();
}

}  // namespace

DataParallel::DataParallel(std::shared_ptr<torch::nn::Module> module, const comm::Group& group,
                           const DdpOptions& options)
    : module_(std::move(module)), group_(group), broadcast_buffers_(options.broadcast_buffers) {
  std::vector<nn::Parameter> parameters;
  for (const auto& item : module_->named_parameters()) {
    TRIREME_REQUIRE(!item.value().is_meta(),
                    "ddp(): the parameter \"{}\" has no memory yet; call nn::materialize() for the model before",
                    item.key());
    parameters.push_back({item.key(), item.value(), {}});
  }
  if (group_.size() == 1) return;
  copy_from_first(group_, module_->parameters());
  copy_from_first(group_, module_->buffers());
  reducer_ = std::make_shared<GradientReducer>(
      parameters, options.reducer, group_,
      GradientReducer::Use{.name = "ddp()",
                           .option_prefix = "ReducerOptions::",
                           .none_left = "ddp(): no parameter of the module requires a gradient"});
}

bool DataParallel::prepare_forward() {
  if (!reducer_ || !module_->is_training() || !at::GradMode::is_enabled()) return false;
  if (sync_ && broadcast_buffers_) copy_from_first(group_, module_->buffers());
  reducer_->prepare_forward();
  return true;
}

ScopeGuard DataParallel::no_sync() {
  if (!reducer_) return ScopeGuard({});
  const bool before = std::exchange(sync_, false);
  return ScopeGuard([this, before, reduction = std::make_shared<ScopeGuard>(reducer_->no_sync())] { sync_ = before; });
}

}  // namespace trireme
