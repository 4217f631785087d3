// What a program passes to Accelerator::prepare(), as plain descriptions.
#pragma once

#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/pimpl.h>

#include <concepts>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "core/base/error.h"
#include "core/booster/plugin.h"
#include "core/data/dataset.h"
#include "core/nn/adapt.h"
#include "core/nn/outputs.h"
#include "core/optim/lr_schedule.h"

namespace torch::optim {
class Optimizer;
class LRScheduler;
}  // namespace torch::optim

namespace trireme {

/// A loader to be prepared: what torch::data's and PyTorch's loaders are made of.
struct DataLoaderOptions {
  std::shared_ptr<data::Dataset> dataset{};
  /// Samples of a data-parallel rank in a batch; with AcceleratorOptions::split_batches of all of them together.
  std::int64_t batch_size = 1;
  bool shuffle = false;
  bool drop_last = false;
  std::optional<bool> augment{};          ///< random augmentation of the data set; unset: as shuffle
  std::optional<std::int64_t> workers{};  ///< threads per rank that read samples; unset: by the machine's cores
  std::int64_t prefetch = 2;              ///< batches that are loaded ahead
};

/// A learning-rate schedule to be prepared. One of the two lengths is set, unless the curve does not depend on it.
struct LrSchedulerOptions {
  optim::LrScheduleOptions schedule{};
  std::optional<std::int64_t> epochs{};       ///< times the optimizer steps in an epoch of the first prepared loader
  std::optional<std::int64_t> total_steps{};  ///< calls of PreparedScheduler::step() in the whole training
};

namespace detail {

template <class Module, std::size_t... I>
constexpr bool takes_tensors(std::index_sequence<I...>) {
  return requires(Module & module, const nn::Tensors& inputs) { module.forward(inputs[I]...); };
}

/// Calls module.forward(first, second, ...) for `Count` or more tensors.
template <std::size_t Count, class Module>
nn::Tensors call_with_tensors(Module& module, const nn::Tensors& inputs) {
  constexpr std::size_t kMost = 6;
  if constexpr (takes_tensors<Module>(std::make_index_sequence<Count>())) {
    if (inputs.size() == Count) return [&]<std::size_t... I>(std::index_sequence<I...>) {
        return nn::tensors_in(module.forward(inputs[I]...));
      }
    (std::make_index_sequence<Count>());
  }
  if constexpr (Count < kMost) return call_with_tensors<Count + 1>(module, inputs);
  throw UsageError(fmt::format(
      "the module's forward() does not take the {} inputs of the data; pass nn::adapt(module, forward) with "
      "a function that selects them",
      inputs.size()));
}

/// Calls the user's forward(): of tensors, or with the context that Trireme's own layers need (dropout).
template <class Module>
nn::Tensors call_forward(Module& module, const nn::Tensors& inputs, const nn::Context& context) {
  if constexpr (requires { module.forward(inputs, context); })
    return nn::tensors_in(module.forward(inputs, context));
  else if constexpr (requires { module.forward(inputs[0], context); })
    return nn::tensors_in(module.forward(inputs.at(0), context));
  else
    return call_with_tensors<1>(module, inputs);
}

template <class T>
concept ModuleHolder = std::derived_from<T, torch::nn::ModuleHolder<typename T::ContainedType>>;

}  // namespace detail

inline ModelSource model_source(ModelSource source) { return source; }
template <std::derived_from<nn::Model> Model>
ModelSource model_source(std::shared_ptr<Model> model) {
  return {.model = std::move(model)};
}
template <std::derived_from<nn::Model> Model>
ModelSource model_source(std::unique_ptr<Model> model) {
  return {.model = std::move(model)};
}
/// One block for each child.
inline ModelSource model_source(const torch::nn::Sequential& sequential) { return {.model = nn::adapt(sequential)}; }
/// A user's module, by its own type: one block, whose forward() takes the data's inputs in their order.
template <class Module>
requires(std::derived_from<Module, torch::nn::Module> && !std::derived_from<Module, nn::Model>) ModelSource
    model_source(std::shared_ptr<Module> module) {
  auto* typed = module.get();  // the block owns the module
  return {.model = nn::adapt(std::move(module), [typed](nn::Tensors inputs, const nn::Context& context) {
            return detail::call_forward(*typed, inputs, context);
          })};
}
template <detail::ModuleHolder Holder>
ModelSource model_source(const Holder& holder) {
  return model_source(holder.ptr());
}

}  // namespace trireme
