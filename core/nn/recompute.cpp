#include "core/nn/recompute.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <optional>
#include <utility>

namespace trireme::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Autocast of one kind of device, as a scope. The cache of cast weights stays off inside: a copy that was cast under
/// no_grad would be found again by the second run and cut the weight off its gradient.
class Autocast {
 public:
  struct State {
    at::DeviceType device;
    bool enabled;
    at::ScalarType dtype;
  };
  static State current(at::DeviceType device) {
    return {device, at::autocast::is_autocast_enabled(device), at::autocast::get_autocast_dtype(device)};
  }
  explicit Autocast(const State& state) : before_(current(state.device)) {
    at::autocast::set_autocast_cache_enabled(false);
    apply(state);
  }
  ~Autocast() {
    apply(before_);
    at::autocast::set_autocast_cache_enabled(cache_);
  }
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  static void apply(const State& state) {
    at::autocast::set_autocast_enabled(state.device, state.enabled);
    at::autocast::set_autocast_dtype(state.device, state.dtype);
  }
  State before_;
  bool cache_ = at::autocast::is_autocast_cache_enabled();
};

/// State of LibTorch's default generator of `device`.
at::Tensor generator_state(c10::Device device) {
  at::Generator generator = at::globalContext().defaultGenerator(device);
  const std::lock_guard<std::mutex> lock(generator.mutex());
  return generator.get_state();
}
void set_generator_state(c10::Device device, const at::Tensor& state) {
  at::Generator generator = at::globalContext().defaultGenerator(device);
  const std::lock_guard<std::mutex> lock(generator.mutex());
  generator.set_state(state);
}

/// What the second run needs besides the inputs.
struct Kept : torch::CustomClassHolder {
  std::shared_ptr<Block> block;
  Context context;
  c10::Device device = at::kCPU;
  Autocast::State autocast{};
  std::vector<bool> wants_grad;  ///< of the block's inputs
  at::Tensor generator;          ///< undefined: the block does not use it
};

struct Recompute : torch::autograd::Function<Recompute> {
  // TensorList: the one kind of list whose tensors become inputs of the node.
  static variable_list forward(AutogradContext* ctx, const c10::intrusive_ptr<Kept>& kept, at::TensorList inputs,
                               at::TensorList parameters) {
    ctx->set_materialize_grads(false);
    ctx->saved_data["kept"] = c10::IValue::make_capsule(kept);
    variable_list saved = inputs.vec();
    saved.insert(saved.end(), parameters.begin(), parameters.end());
    ctx->save_for_backward(std::move(saved));
    const Autocast scope(kept->autocast);
    return kept->block->forward(inputs.vec(), kept->context);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto kept = c10::static_intrusive_pointer_cast<Kept>(ctx->saved_data.at("kept").toCapsule());
    const auto saved = ctx->get_saved_variables();
    const std::size_t count = kept->wants_grad.size();
    variable_list inputs, targets;
    for (std::size_t i = 0; i < count; ++i) {
      inputs.push_back(saved[i].detach());
      if (!kept->wants_grad[i]) continue;
      inputs.back().set_requires_grad(true);
      targets.push_back(inputs.back());
    }
    targets.insert(targets.end(), saved.begin() + static_cast<std::ptrdiff_t>(count), saved.end());

    const auto [outputs, output_grads] = run_again(*kept, inputs, grads);
    variable_list found(targets.size());
    if (!outputs.empty())
      found = torch::autograd::grad(outputs, targets, output_grads, std::nullopt, false, /*allow_unused=*/true);

    variable_list result(1);  // `kept` has no gradient
    std::size_t next = 0;
    for (std::size_t i = 0; i < count; ++i) result.push_back(kept->wants_grad[i] ? found[next++] : at::Tensor());
    while (next < found.size()) result.push_back(alone(std::move(found[next++])));
    return result;
  }

  /// A parameter's gradient in memory of its own. Accumulation takes a gradient over as it is and adds to it in place;
  /// with one sample in the batch two of them may be views of one tensor (class token and positions, say).
  static at::Tensor alone(at::Tensor gradient) {
    return gradient.defined() && gradient.storage().use_count() > 1 ? gradient.clone() : gradient;
  }

  /// The outputs that have a gradient to send back, and those gradients.
  static std::pair<variable_list, variable_list> run_again(const Kept& kept, const variable_list& inputs,
                                                           const variable_list& grads) {
    const at::AutoGradMode enable(true);
    const Autocast scope(kept.autocast);
    at::Tensor generator_now;
    if (kept.generator.defined()) {
      generator_now = generator_state(kept.device);
      set_generator_state(kept.device, kept.generator);
    }
    const Tensors outputs = kept.block->forward(inputs, kept.context);
    if (generator_now.defined()) set_generator_state(kept.device, generator_now);
    variable_list used, used_grads;
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      if (!grads[i].defined() || !outputs[i].requires_grad()) continue;
      used.push_back(outputs[i]);
      used_grads.push_back(grads[i]);
    }
    return {std::move(used), std::move(used_grads)};
  }
};

}  // namespace

Tensors recompute(const std::shared_ptr<Block>& block, Tensors inputs, const Context& context) {
  variable_list parameters;
  for (auto& parameter : block->parameters())
    if (parameter.requires_grad()) parameters.push_back(std::move(parameter));
  auto kept = c10::make_intrusive<Kept>();
  bool wanted = !parameters.empty();
  for (const auto& input : inputs) {
    kept->wants_grad.push_back(input.requires_grad());
    wanted = wanted || kept->wants_grad.back();
    kept->device = input.device();
  }
  if (!wanted || !at::GradMode::is_enabled()) return block->forward(std::move(inputs), context);
  kept->block = block;
  kept->context = context;
  kept->autocast = Autocast::current(kept->device.type());
  if (block->uses_torch_generators()) kept->generator = generator_state(kept->device);
  return Recompute::apply(kept, at::TensorList(inputs), at::TensorList(parameters));
}

}  // namespace trireme::nn
