// ddp(): data parallelism for a training loop written by hand, with any torch::nn module and any torch::optim
// optimizer, as PyTorch's DistributedDataParallel has it.
//
//   Net net;                                                        // a ModuleHolder, or a std::shared_ptr to a module
//   auto model = trireme::ddp(net, world.group());
//   torch::optim::AdamW optimizer(net->parameters());
//   ...
//   const auto loss = loss_of(model(images), labels);               // net->forward(images)
//   loss.backward();                                                // averages the gradients over the ranks
//   optimizer.step();
//
// Each rank computes the mean loss of its own batch, and the gradients are averaged with equal weights. When the ranks'
// batches have different sizes, scale each rank's loss by ranks x local samples / global samples.
#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <utility>

#include "core/booster/gradient_reducer.h"
#include "core/nn/outputs.h"

namespace trireme {

struct DdpOptions {
  ReducerOptions reducer{};
  /// Before each forward pass in training, buffers such as running statistics become those of rank 0.
  bool broadcast_buffers = true;
};

/// What does not depend on the module's type. In a group of one rank it does nothing.
class DataParallel {
 public:
  /// Makes parameters and buffers those of rank 0. Collective.
  /// @throws UsageError for parameters without memory; ConfigError when none requires a gradient
  DataParallel(std::shared_ptr<torch::nn::Module> module, const comm::Group& group, const DdpOptions& options);
  /// Whether the pass that begins is one of training. Only then prepare_backward() follows.
  [[nodiscard]] bool prepare_forward();
  void prepare_backward(const nn::Tensors& outputs) { reducer_->prepare_backward(outputs); }
  ScopeGuard no_sync();

 private:
  std::shared_ptr<torch::nn::Module> module_;
  comm::Group group_;
  bool broadcast_buffers_;
  bool sync_ = true;
  std::shared_ptr<GradientReducer> reducer_;  ///< null in a group of one
};

/// `Module`: a ModuleHolder or a shared pointer.
template <class Module>
class DistributedDataParallel {
 public:
  DistributedDataParallel(Module module, const comm::Group& group, const DdpOptions& options)
      : module_(std::move(module)), parallel_(std::make_unique<DataParallel>(shared(module_), group, options)) {}

  /// module->forward(inputs...). In training, the backward pass from its outputs reduces the gradients.
  template <class... Inputs>
  auto forward(Inputs&&... inputs) {
    const bool trains = parallel_->prepare_forward();
    auto outputs = module_->forward(std::forward<Inputs>(inputs)...);
    if (trains) parallel_->prepare_backward(nn::tensors_in(outputs));
    return outputs;
  }
  template <class... Inputs>
  auto operator()(Inputs&&... inputs) {
    return forward(std::forward<Inputs>(inputs)...);
  }
  /// While the guard exists, forward and backward passes add to the local gradients without a reduction.
  ScopeGuard no_sync() { return parallel_->no_sync(); }
  /// The user's module: model->train(), model->parameters().
  auto operator->() const { return shared(module_).get(); }
  [[nodiscard]] const Module& module() const { return module_; }

 private:
  static auto shared(const Module& module) {
    if constexpr (requires { module.ptr(); })
      return module.ptr();
    else
      return module;
  }
  Module module_;
  std::unique_ptr<DataParallel> parallel_;
};

/// Collective over the group. The parameters must have their memory and device, and require gradients or not, as in
/// training.
template <class Module>
[[nodiscard]] DistributedDataParallel<Module> ddp(Module module, const comm::Group& group,
                                                  const DdpOptions& options = {}) {
  return {std::move(module), group, options};
}

}  // namespace trireme
