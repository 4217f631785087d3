#include "pipeline/block_costs.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/scalar_tensor.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <limits>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "core/base/planned_device.h"
#include "core/comm/host_values.h"
#include "core/nn/autograd/flops.h"
#include "core/nn/autograd/generator_state.h"
#include "core/nn/block.h"
#include "core/nn/parameters.h"

namespace trireme::pipeline {
namespace {

/// Random values that are the same on every rank, from a separate generator.
class Random {
 public:
  explicit Random(const ProfileConfig& config)
      : options_(at::TensorOptions().dtype(config.dtype).device(config.device)) {}
  at::Tensor operator()(at::IntArrayRef shape) {
    if (options_.device().is_meta()) return at::empty(shape, options_);
    return at::randn(shape, generator_, at::TensorOptions(at::kFloat)).to(options_);
  }

 private:
  at::TensorOptions options_;
  at::Generator generator_ = at::detail::createCPUGenerator(1);
};

/// Gives a block's parameters memory and random values while it lives. A user's own parameters, and buffers, have
/// values: they are copied to the profiled device and dtype, and restored afterwards.
class TemporaryParameters {
 public:
  TemporaryParameters(nn::Block& block, const ProfileConfig& config, Random& random) {
    for (auto* layer : nn::layers_in(block))
      for (const auto& declared : layer->declared()) {
        borrowed_.push_back({layer, declared.name, *declared.member});
        layer->set_storage(declared.name, random(declared.member->sizes()) * 0.02);
      }
    const auto copy = [&](const at::Tensor& tensor) {
      own_.emplace_back(tensor, tensor.tensor_data());
      const auto type = tensor.is_floating_point() ? config.dtype : tensor.scalar_type();
      set_value(tensor, tensor.tensor_data().to(config.device, type, /*non_blocking=*/false, /*copy=*/true));
    };
    std::set<const void*> known;
    for (const auto& [layer, name, value] : borrowed_)
      for (const auto& declared : layer->declared()) known.insert(declared.member->unsafeGetTensorImpl());
    for (const auto& parameter : block.parameters())
      if (known.insert(parameter.unsafeGetTensorImpl()).second) copy(parameter);
    for (const auto& buffer : block.buffers())
      if (known.insert(buffer.unsafeGetTensorImpl()).second) copy(buffer);
  }
  ~TemporaryParameters() {
    for (auto& [layer, name, value] : borrowed_) layer->set_storage(name, std::move(value));
    for (auto& [tensor, value] : own_) set_value(tensor, value);
  }
  TemporaryParameters(const TemporaryParameters&) = delete;
  TemporaryParameters& operator=(const TemporaryParameters&) = delete;

 private:
  struct Borrowed {
    nn::Layer* layer;
    std::string name;
    at::Tensor value;
  };
  std::vector<Borrowed> borrowed_;
  std::vector<std::pair<at::Tensor, at::Tensor>> own_;
};

/// Runs forward and backward once. The inputs of the first block need no gradient, as in training.
nn::Tensors forward_backward_once(nn::Block& block, const nn::Tensors& given, const nn::Context& context, bool first) {
  const at::AutoGradMode with_graph(true);
  nn::Tensors inputs;
  for (const auto& input : given)
    inputs.push_back(input.detach().set_requires_grad(!first && at::isFloatingType(input.scalar_type())));
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

/// The time in seconds, after all work queued on the device is done.
double synchronized_seconds(c10::Device device) {
  if (device.is_cuda())
    c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.has_index() ? device.index() : 0);
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Random floating-point values; integers, such as token ids and masks, are those of the example.
nn::NamedTensors inputs_like(const nn::NamedTensors& example, const ProfileConfig& config, Random& random) {
  nn::NamedTensors inputs;
  for (const auto& [name, input] : example) {
    auto shape = input.sizes().vec();
    shape.front() = config.samples;
    inputs.set(name, at::isFloatingType(input.scalar_type()) ? random(shape)
                                                             : input.expand(shape).contiguous().to(config.device));
  }
  return inputs;
}

struct BlockProfile {
  nn::Tensors outputs;
  double cost;
};
using ProfileBlock = std::function<BlockProfile(nn::Block& block, nn::Tensors inputs, const nn::Context& context)>;

/// Each block's cost, with temporary parameters. The blocks run one after another, in training.
std::vector<double> profile_blocks(nn::Model& model, const nn::NamedTensors& example, const ProfileConfig& config,
                                   const comm::Group& everyone, const ProfileBlock& profile_one) {
  const nn::GeneratorStateGuard generators(config.device);
  Random random(config);
  const auto named = inputs_like(example, config, random);
  auto inputs = model.first_inputs(named);
  nn::Context context{.training = true,
                      .sample_ids = at::arange(inputs.front().size(0), at::kLong),
                      .loss_weight = at::scalar_tensor(1, at::kDouble)};
  context.tokens = model.tokens(inputs);
  context.side = model.side_inputs(named);
  std::vector<double> costs;
  model.forward(std::move(inputs), context,
                [&](const std::shared_ptr<nn::Block>& block, nn::Tensors in, const nn::Context& of_block) {
                  const TemporaryParameters temporary(*block, config, random);
                  auto profile = profile_one(*block, std::move(in), of_block);
                  costs.push_back(profile.cost);
                  return std::move(profile.outputs);
                });
  // Stages must be the same on every rank, but a user's own blocks may behave differently.
  return comm::reduce_values(everyone, costs, comm::ReduceOp::sum);
}

}  // namespace

std::vector<double> parameter_costs(nn::Model& model) {
  const auto users = nn::users(model);
  std::vector<double> costs(model.blocks().size(), 0);
  for (const auto& parameter : nn::declarations(model))
    costs[users.at(parameter.name).front()] += static_cast<double>(parameter.placement.full_numel());
  return costs;
}

std::vector<double> flop_costs(nn::Model& model, const nn::NamedTensors& example, const ProfileConfig& config,
                               const comm::Group& everyone) {
  const at::NoGradGuard no_grad;
  return profile_blocks(model, example, config, everyone,
                        [](nn::Block& block, nn::Tensors in, const nn::Context& context) {
                          auto plain = context;
                          plain.training = false;  // dropout masks do not count as FLOPs
                          const nn::FlopCounter counter;
                          auto out = block.forward(std::move(in), plain);
                          return BlockProfile{std::move(out), counter.flops()};
                        });
}

std::vector<double> time_costs(nn::Model& model, const nn::NamedTensors& example, const ProfileConfig& config,
                               const comm::Group& everyone) {
  // A planned device takes no time, and its stages must agree.
  if (config.device.is_meta()) return flop_costs(model, example, config, everyone);
  bool first = true;
  return profile_blocks(model, example, config, everyone,
                        [&](nn::Block& block, nn::Tensors in, const nn::Context& context) {
                          BlockProfile best{{}, std::numeric_limits<double>::infinity()};
                          for (int once = 0; once < 3; ++once) {
                            const auto begin = synchronized_seconds(config.device);
                            best.outputs = forward_backward_once(block, in, context, first);
                            best.cost = std::min(best.cost, synchronized_seconds(config.device) - begin);
                          }
                          for (auto& parameter : block.parameters()) parameter.mutable_grad().reset();
                          first = false;
                          return best;
                        });
}

}  // namespace trireme::pipeline
