#include "core/nn/autograd/recompute.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>

#include <optional>
#include <unordered_map>
#include <utility>

#include "core/base/autocast.h"
#include "core/base/planned_device.h"
#include "core/nn/autograd/saved_state.h"
#include "core/nn/autograd/split_backward.h"

namespace trireme::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Sets autocast for one kind of device in a scope. The cache of cast weights stays off inside: the second run would
/// find a copy that was cast under no_grad, and the weight would get no gradient.
class Autocast {
 public:
  explicit Autocast(const AutocastState& state) : before_(AutocastState::current(state.device)) {
    at::autocast::set_autocast_cache_enabled(false);
    state.apply();
  }
  ~Autocast() {
    before_.apply();
    at::autocast::set_autocast_cache_enabled(cache_);
  }
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  AutocastState before_;
  bool cache_ = at::autocast::is_autocast_cache_enabled();
};

/// LibTorch's default generator for `device`; a planned one draws nothing, and has none.
at::Generator generator_of(c10::Device device) {
  return at::globalContext().defaultGenerator(device.is_meta() ? c10::Device(c10::kCPU) : device);
}

at::Tensor generator_state(c10::Device device) {
  at::Generator generator = generator_of(device);
  const std::lock_guard<std::mutex> lock(generator.mutex());
  return generator.get_state();
}
void set_generator_state(c10::Device device, const at::Tensor& state) {
  at::Generator generator = generator_of(device);
  const std::lock_guard<std::mutex> lock(generator.mutex());
  generator.set_state(state);
}

/// Restores buffers: the second run must not update running statistics again.
class SavedBuffers {
 public:
  explicit SavedBuffers(const Tensors& buffers) {
    for (const auto& buffer : buffers)
      if (buffer.defined()) saved_.emplace_back(buffer.variable_data(), buffer.detach().clone());
  }
  void restore() {
    const at::NoGradGuard no_grad;
    for (auto& [buffer, value] : saved_) buffer.copy_(value);
  }

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> saved_;  ///< the buffer's own memory, and its values
};

/// Everything that the second run needs besides inputs and parameters.
struct SavedCall {
  Recomputable function;
  c10::Device device = at::kCPU;
  AutocastState autocast{};
  std::vector<bool> requires_grad;                  ///< for each input
  at::Tensor generator;                             ///< undefined when LibTorch's generators are not used
  std::shared_ptr<ActivationOffload::Saved> moved;  ///< the inputs, if they are offloaded
  std::optional<SplitBackward> begun;               ///< between the two parts of a split backward pass
};

struct Recompute : torch::autograd::Function<Recompute> {
  // TensorList is the only list type whose tensors become inputs of the node.
  static variable_list forward(AutogradContext* ctx, const std::shared_ptr<SavedCall>& saved_call,
                               at::TensorList inputs, at::TensorList parameters) {
    ctx->set_materialize_grads(false);
    save_state(ctx, saved_call);
    const auto& function = saved_call->function;
    variable_list saved;
    if (function.offload)
      saved_call->moved = function.offload->save(inputs.vec());
    else
      saved = inputs.vec();
    saved.insert(saved.end(), parameters.begin(), parameters.end());
    ctx->save_for_backward(std::move(saved));
    const Autocast scope(saved_call->autocast);
    return function.run(inputs.vec());
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved_call = saved_state<SavedCall>(ctx);
    const auto saved = ctx->get_saved_variables();
    const std::size_t count = saved_call->requires_grad.size(), kept = saved_call->moved ? 0 : count;
    const variable_list parameters(saved.begin() + static_cast<std::ptrdiff_t>(kept), saved.end());
    variable_list result(1 + count + parameters.size());  // the first belongs to saved_call, which has no gradient
    // In a split backward pass, the first part asks for gradients of inputs, the second for those of parameters.
    const bool wants_parameters = wants(*ctx, count, count + parameters.size());
    if (wants_parameters && saved_call->begun) {
      second_part(*std::exchange(saved_call->begun, std::nullopt), parameters, result);
      return result;
    }
    variable_list inputs = saved_call->moved ? saved_call->function.offload->restore(*saved_call->moved) : saved;
    inputs.resize(count);
    for (std::size_t i = 0; i < count; ++i)
      inputs[i] = inputs[i].detach().set_requires_grad(saved_call->requires_grad[i]);
    // Without parameters there is no second part.
    if (wants_parameters || parameters.empty()) {
      whole(run_again(*saved_call, inputs, grads), inputs, parameters, result);
    } else {
      saved_call->begun.emplace(run_again(*saved_call, inputs, grads), wanted_of(inputs));
      auto next = saved_call->begun->input_gradients().begin();
      for (std::size_t i = 0; i < count; ++i)
        if (saved_call->requires_grad[i]) result[1 + i] = std::move(*next++);
    }
    return result;
  }

  static void whole(const std::vector<SplitBackward::Root>& roots, const variable_list& inputs,
                    const variable_list& parameters, variable_list& result) {
    variable_list targets = inputs;
    targets.insert(targets.end(), parameters.begin(), parameters.end());
    auto found = gradients(roots, targets);
    for (std::size_t i = 0; i < targets.size(); ++i)
      result[1 + i] = i < inputs.size() ? std::move(found[i]) : alone(std::move(found[i]));
  }

  static void second_part(SplitBackward pass, const variable_list& parameters, variable_list& result) {
    const auto first = result.size() - parameters.size();
    std::unordered_map<const torch::autograd::Node*, std::size_t> positions;
    for (std::size_t i = 0; i < parameters.size(); ++i)
      positions[torch::autograd::impl::grad_accumulator(parameters[i]).get()] = first + i;
    pass.weights([&](torch::autograd::Node& accumulator, at::Tensor gradient) {
      result[positions.at(&accumulator)] = alone(std::move(gradient));
    });
  }

  /// Whether the autograd engine needs the gradient of any of these saved tensors.
  static bool wants(const AutogradContext& ctx, std::size_t begin, std::size_t end) {
    for (auto i = begin; i < end; ++i)
      if (ctx.needs_input_grad(i)) return true;
    return false;
  }

  static variable_list wanted_of(const variable_list& inputs) {
    variable_list wanted;
    for (const auto& input : inputs)
      if (input.requires_grad()) wanted.push_back(input);
    return wanted;
  }

  /// Gives a parameter's gradient its own memory. Accumulation takes over the first gradient's memory and adds to it in
  /// place, and with one sample in the batch two gradients can be views of one tensor (class token and positions).
  static at::Tensor alone(at::Tensor gradient) {
    return gradient.defined() && gradient.storage().use_count() > 1 ? gradient.clone() : gradient;
  }

  /// Runs the function again. Returns the roots of its backward pass: the outputs that have an incoming gradient.
  static std::vector<SplitBackward::Root> run_again(const SavedCall& saved_call, const variable_list& inputs,
                                                    const variable_list& grads) {
    const at::AutoGradMode enable(true);
    const Autocast scope(saved_call.autocast);
    at::Tensor generator_now;
    if (saved_call.generator.defined()) {
      generator_now = generator_state(saved_call.device);
      set_generator_state(saved_call.device, saved_call.generator);
    }
    SavedBuffers buffers(saved_call.function.buffers);
    const Tensors outputs = saved_call.function.run(inputs);
    buffers.restore();
    if (generator_now.defined()) set_generator_state(saved_call.device, generator_now);
    std::vector<SplitBackward::Root> roots;
    for (std::size_t i = 0; i < outputs.size(); ++i)
      if (grads[i].defined() && outputs[i].requires_grad())
        roots.push_back({torch::autograd::impl::gradient_edge(outputs[i]), grads[i]});
    return roots;
  }
};

}  // namespace

Tensors run_recomputable(Recomputable function, Tensors inputs) {
  std::erase_if(function.parameters, [](const at::Tensor& parameter) { return !parameter.requires_grad(); });
  auto saved_call = std::make_shared<SavedCall>();
  bool wanted = !function.parameters.empty();
  for (const auto& input : inputs) {
    saved_call->requires_grad.push_back(input.requires_grad());
    wanted = wanted || saved_call->requires_grad.back();
    saved_call->device = input.device();
  }
  if (!wanted || !at::GradMode::is_enabled()) return function.run(inputs);
  saved_call->autocast = AutocastState::current(type_of(saved_call->device));
  if (function.uses_torch_generators) saved_call->generator = generator_state(saved_call->device);
  const auto parameters = std::exchange(function.parameters, {});  // autograd saves these
  saved_call->function = std::move(function);
  return Recompute::apply(saved_call, at::TensorList(inputs), at::TensorList(parameters));
}

Recomputable recomputable(const std::shared_ptr<Block>& block, const Context& context) {
  return {.run = [block, context](const Tensors& inputs) { return block->forward(inputs, context); },
          .parameters = block->parameters(),
          .buffers = block->buffers(),
          .uses_torch_generators = block->uses_torch_generators()};
}

Tensors recompute(const std::shared_ptr<Block>& block, Tensors inputs, const Context& context) {
  return run_recomputable(recomputable(block, context), std::move(inputs));
}

}  // namespace trireme::nn
