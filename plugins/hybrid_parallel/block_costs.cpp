#include "plugins/hybrid_parallel/block_costs.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/record_function.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "core/nn/block.h"
#include "core/nn/parameters.h"

namespace trireme::plugins {
namespace {

using RunOne = std::function<nn::Tensors(nn::Block& block, nn::Tensors inputs, const nn::Context& context)>;

/// The blocks one after the other, in training.
void run_blocks(nn::Model& model, nn::Tensors inputs, const RunOne& run) {
  nn::Context context{.training = true, .sample_ids = at::arange(inputs.front().size(0), at::kLong)};
  context.tokens = model.tokens(inputs);
  model.forward(std::move(inputs), context,
                [&](const std::shared_ptr<nn::Block>& block, nn::Tensors in, const nn::Context& c) {
                  return run(*block, std::move(in), c);
                });
}

using Values = c10::ArrayRef<const c10::IValue>;

double numel(const c10::IValue& tensor) { return static_cast<double>(tensor.toTensor().numel()); }

/// input, weight, bias, stride, padding, dilation: lists of one number for each dim of space, or one for all.
double convolution_flops(const Values& in) {
  const auto input = in.at(0).toTensor(), weight = in.at(1).toTensor();
  const auto of = [](const c10::IValue& value, std::int64_t dim) {
    const auto list = value.toIntVector();
    return list.size() == 1 ? list.front() : list.at(static_cast<std::size_t>(dim));
  };
  auto made = static_cast<double>(input.size(0) * weight.size(0));
  for (std::int64_t d = 0; d + 2 < input.dim(); ++d) {
    const auto reach = of(in.at(5), d) * (weight.size(d + 2) - 1) + 1;
    made *= static_cast<double>((input.size(d + 2) + 2 * of(in.at(4), d) - reach) / of(in.at(3), d) + 1);
  }
  return 2 * made * static_cast<double>(weight.numel() / weight.size(0));
}

/// Two for each multiplication of an operator that multiplies matrices; 0 for others.
double flops_of(std::string_view name, const Values& in) {
  const auto product = [&](std::size_t a, std::size_t b) {
    return 2 * numel(in.at(a)) * static_cast<double>(in.at(b).toTensor().size(-1));
  };
  if (name == "aten::mm" || name == "aten::bmm") return product(0, 1);
  if (name == "aten::addmm" || name == "aten::baddbmm") return product(1, 2);
  if (name == "aten::convolution") return convolution_flops(in);
  // A fused attention (query, key, ...): two products of the scores' size. The one that is not fused calls bmm.
  if (name.starts_with("aten::_scaled_dot_product_") && name.find("math") == name.npos)
    return 4 * numel(in.at(0)) * static_cast<double>(in.at(1).toTensor().size(-2));
  return 0;
}

/// Adds up the operators' of this thread while it lives.
class FlopCounter {
 public:
  FlopCounter() {
    counted() = 0;
    auto count = at::RecordFunctionCallback([](const at::RecordFunction& function) {
      counted() += flops_of(function.name(), function.inputs());
      return std::unique_ptr<at::ObserverContext>();
    });
    handle_ = at::addThreadLocalCallback(count.needsInputs(true).scopes({at::RecordScope::FUNCTION}));
  }
  ~FlopCounter() { at::removeCallback(handle_); }
  FlopCounter(const FlopCounter&) = delete;
  FlopCounter& operator=(const FlopCounter&) = delete;
  [[nodiscard]] double flops() const { return counted(); }

 private:
  /// A callback is a plain function, with no room for an object of ours.
  static double& counted() {
    static thread_local double flops = 0;
    return flops;
  }
  at::CallbackHandle handle_;
};

/// A block's parameters while they have memory and random values.
class Lent {
 public:
  Lent(nn::Block& block, const Trial& trial) {
    const auto options = at::TensorOptions().dtype(trial.dtype).device(trial.device);
    block.apply([&](torch::nn::Module& module) {
      if (auto* layer = dynamic_cast<nn::Layer*>(&module))
        for (const auto& declared : layer->declared()) {
          borrowed_.push_back({layer, declared.name, *declared.member});
          layer->place(declared.name, at::randn(declared.member->sizes(), options) * 0.02);
        }
    });
    for (const auto& parameter : block.parameters())  // a user's own have values: they are to be kept
      if (parameter.device() != trial.device || parameter.scalar_type() != trial.dtype) {
        own_.emplace_back(parameter, parameter.tensor_data());
        parameter.set_data(parameter.tensor_data().to(options));
      }
  }
  ~Lent() {
    for (auto& [layer, name, value] : borrowed_) layer->place(name, std::move(value));
    for (auto& [parameter, value] : own_) parameter.set_data(value);
  }
  Lent(const Lent&) = delete;
  Lent& operator=(const Lent&) = delete;

 private:
  struct Borrowed {
    nn::Layer* layer;
    std::string name;
    at::Tensor value;
  };
  std::vector<Borrowed> borrowed_;
  std::vector<std::pair<at::Tensor, at::Tensor>> own_;
};

/// Forward and backward, once.
nn::Tensors try_block(nn::Block& block, const nn::Tensors& given, const nn::Context& context) {
  const at::AutoGradMode with_graph(true);
  nn::Tensors inputs;
  for (const auto& input : given)
    inputs.push_back(input.detach().set_requires_grad(at::isFloatingType(input.scalar_type())));
  auto outputs = block.forward(std::move(inputs), context);
  nn::Tensors roots, gradients;
  for (auto& output : outputs) {
    if (output.requires_grad()) {
      roots.push_back(output);
      gradients.push_back(at::ones_like(output));
    }
  }
  if (!roots.empty()) torch::autograd::backward(roots, gradients);
  for (auto& output : outputs) output = output.detach();
  return outputs;
}

/// Seconds, when all that was asked of the device is done.
double settled(c10::Device device) {
  if (!device.is_cpu())
    c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.has_index() ? device.index() : 0);
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

nn::Tensors inputs_like(const nn::Tensors& example, const Trial& trial) {
  nn::Tensors inputs;
  for (const auto& input : example) {
    auto shape = input.sizes().vec();
    shape.front() = trial.samples;
    const auto options = input.options().device(trial.device);
    inputs.push_back(at::isFloatingType(input.scalar_type()) ? at::randn(shape, options.dtype(trial.dtype))
                                                             : at::zeros(shape, options));
  }
  return inputs;
}

}  // namespace

std::vector<double> parameter_costs(nn::Model& model) {
  const auto users = nn::users(model);
  std::vector<double> costs(model.blocks().size(), 0);
  for (const auto& parameter : nn::declarations(model))
    costs[users.at(parameter.name).front()] += static_cast<double>(parameter.placement.full_numel());
  return costs;
}

std::vector<double> flop_costs(nn::Model& model, const nn::Tensors& example, const Trial& trial) {
  const at::NoGradGuard no_grad;
  std::vector<double> costs;
  run_blocks(model, inputs_like(example, trial), [&](nn::Block& block, nn::Tensors in, const nn::Context& context) {
    const Lent lent(block, trial);
    auto plain = context;
    plain.training = false;  // masks cost no product
    const FlopCounter counter;
    auto out = block.forward(std::move(in), plain);
    costs.push_back(counter.flops());
    return out;
  });
  return costs;
}

std::vector<double> time_costs(nn::Model& model, const nn::Tensors& example, const Trial& trial,
                               const comm::Group& everyone) {
  std::vector<double> costs;
  run_blocks(model, inputs_like(example, trial), [&](nn::Block& block, nn::Tensors in, const nn::Context& context) {
    const Lent lent(block, trial);
    nn::Tensors out;
    double best = std::numeric_limits<double>::infinity();
    for (int once = 0; once < 3; ++once) {
      const auto begin = settled(trial.device);
      out = try_block(block, in, context);
      best = std::min(best, settled(trial.device) - begin);
    }
    for (auto& parameter : block.parameters()) parameter.mutable_grad().reset();
    costs.push_back(best);
    return out;
  });
  auto sum = at::tensor(costs, at::kDouble).to(everyone.size() > 1 ? trial.device : at::Device(at::kCPU));
  everyone.all_reduce(sum);
  sum = sum.cpu();
  const auto* values = sum.const_data_ptr<double>();
  return {values, values + costs.size()};
}

}  // namespace trireme::plugins
