#include "plugins/data_parallel/data_parallel_model.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "core/base/error.h"
#include "core/nn/autograd/saved_state.h"
#include "core/nn/block.h"
#include "core/shard/placement.h"

namespace trireme::plugins {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor samples_of(const at::Tensor& all, const shard::Range& range, c10::Device device) {
  return all.narrow(0, range.begin, range.size()).to(device, all.scalar_type(), /*non_blocking=*/true);
}

/// What a replica's forward pass reads of its samples. Targets are for the loss, which needs all samples.
data::Batch inputs_of(const data::Batch& batch, const shard::Range& samples, c10::Device device) {
  data::Batch part{.global_weight = batch.global_weight, .epoch = batch.epoch, .step = batch.step};
  for (const auto& [name, input] : batch.inputs) {
    TRIREME_REQUIRE(input.dim() > 0 && input.size(0) == batch.size(),
                    "plugin.data_parallel: the input \"{}\" does not have the batch's {} samples along its first "
                    "dimension, so it cannot be scattered over the replicas; set replicas = 1",
                    name, batch.size());
    part.inputs.set(name, samples_of(input, samples, device));
  }
  if (batch.sample_ids.defined()) part.sample_ids = batch.sample_ids.narrow(0, samples.begin, samples.size());
  return part;
}

std::vector<at::Tensor> buffer_values(nn::Model& model) {
  std::vector<at::Tensor> values;
  for (auto& buffer : nn::buffers(model)) values.push_back(std::move(buffer.value));
  return values;
}

/// LibTorch's generators belong to the process: threads that draw from them at once would draw by chance.
bool draws_from_generators(const nn::Model& model) {
  return std::any_of(model.blocks().begin(), model.blocks().end(),
                     [](const auto& block) { return block->uses_torch_generators(); });
}

}  // namespace

/// The replicas' outputs of one microbatch, with their graphs, until their backward pass.
struct DataParallelModel::ForwardPass {
  std::vector<nn::Tensors> outputs;  ///< of each replica
  variable_list gradients{};         ///< of the gathered outputs; undefined for one that the loss does not use
};

/// Concatenates the replicas' outputs along the samples. The backward pass only stores the gradient: a thread of the
/// autograd engine that waited for the replicas' passes would block those that need the same device.
struct DataParallelModel::Gather : torch::autograd::Function<DataParallelModel::Gather> {
  using Arrived = std::vector<std::shared_ptr<ForwardPass>>;
  struct State {
    std::shared_ptr<ForwardPass> pass;
    std::shared_ptr<Arrived> arrived;
  };
  static variable_list concatenated(const std::vector<nn::Tensors>& outputs) {
    variable_list whole;
    for (std::size_t k = 0; k < outputs.front().size(); ++k) {
      std::vector<at::Tensor> parts;
      for (const auto& made : outputs) parts.push_back(made.at(k).to(outputs.front()[k].device()));
      whole.push_back(at::cat(parts));
    }
    return whole;
  }
  /// `anchor` requires a gradient, so that the outputs do: the replicas' outputs are no inputs of this node.
  static variable_list forward(AutogradContext* ctx, const std::shared_ptr<State>& state,
                               const at::Tensor& /*anchor*/) {
    ctx->set_materialize_grads(false);
    nn::save_state(ctx, state);
    return concatenated(state->pass->outputs);
  }
  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const auto state = nn::saved_state<State>(ctx);
    state->pass->gradients = std::move(gradients);
    state->arrived->push_back(state->pass);
    return variable_list(2);
  }
};

DataParallelModel::DataParallelModel(const ModelSource& source, std::vector<nn::Parameter> parameters,
                                     const BoostOptions& options, std::vector<c10::Device> devices)
    : LocalModel(source.model, std::move(parameters), options, devices.front()),
      devices_(std::move(devices)),
      threads_(devices_, draws_from_generators(*source.model)),
      arrived_(std::make_shared<Gather::Arrived>()) {
  buffers_.push_back(buffer_values(module()));
  for (std::size_t r = 1; r < devices_.size(); ++r) add_replica(source, options, devices_[r]);
  if (others_.empty()) return;
  const bool cpu = devices_.front().is_cpu();
  note(fmt::format("1 rank, {} replicas{}", devices_.size(),
                   cpu ? "" : fmt::format(" on {} to {}", devices_.front().str(), devices_.back().str())));
  if (draws_from_generators(module()))
    note(
        "the replicas run one after the other, because the model draws from LibTorch's generators (as a user's own "
        "dropout does), which belong to the process");
}

void DataParallelModel::add_replica(const ModelSource& source, const BoostOptions& options, c10::Device device) {
  TRIREME_REQUIRE(source.make != nullptr,
                  "plugin.data_parallel.replicas: there is no function that makes the model again for each replica; "
                  "set ModelSource::make (Accelerator::prepare() takes a ModelSource, too), or replicas = 1");
  std::map<std::string, at::Tensor> values;
  for (const auto& p : parameters()) values[p.name] = p.value;
  const auto value_of = [&values](const std::string& name) -> const at::Tensor& {
    const auto found = values.find(name);
    TRIREME_REQUIRE(found != values.end(),
                    "ModelSource::make() made a model with a parameter \"{}\" that the first one "
                    "does not have",
                    name);
    return found->second;
  };
  auto model = source.make();
  nn::install(
      *model,
      [&](const nn::Declaration& declared) {
        const auto value = value_of(declared.name).variable_data();
        return device == devices_.front() ? value : at::empty_like(value, value.options().device(device));
      },
      Precision::parse(options.train.precision).parameters, device);
  auto own = nn::parameters(*model);
  TRIREME_REQUIRE(own.size() == values.size(),
                  "ModelSource::make() made a model with {} parameters; the first one has "
                  "{}",
                  own.size(), values.size());
  for (auto& p : own) {
    TRIREME_REQUIRE(!p.value.is_same(value_of(p.name)),
                    "ModelSource::make() must make new modules for each replica, but "
                    "the parameter \"{}\" is the first model's own",
                    p.name);
    p.value.set_requires_grad(value_of(p.name).requires_grad());
  }
  buffers_.push_back(buffer_values(*model));
  TRIREME_REQUIRE(buffers_.back().size() == buffers_.front().size(),
                  "ModelSource::make() made a model with {} buffers; the first one has {}", buffers_.back().size(),
                  buffers_.front().size());
  others_.push_back(std::make_unique<LocalModel>(std::move(model), std::move(own), options, device));
}

void DataParallelModel::copy_to_replicas(std::size_t count) {
  const at::NoGradGuard no_grad;
  for (std::size_t r = 1; r < count; ++r)
    for (std::size_t i = 0; i < buffers_[r].size(); ++i) buffers_[r][i].copy_(buffers_[0][i], /*non_blocking=*/true);
  if (std::exchange(copied_, true)) return;
  for (auto& other : others_)
    for (std::size_t i = 0; i < parameters().size(); ++i)
      if (auto& value = other->parameters()[i].value; !value.is_alias_of(parameters()[i].value))
        value.copy_(parameters()[i].value, /*non_blocking=*/true);
}

void DataParallelModel::for_each_module(const std::function<void(nn::Model&)>& change) {
  change(module());
  for (auto& other : others_) change(other->module());
}

nn::Tensors DataParallelModel::forward(const data::Batch& batch) {
  const auto samples = batch.size();
  const auto count = static_cast<int>(std::min(samples, static_cast<std::int64_t>(devices_.size())));
  if (count <= 1) return LocalModel::forward(batch);
  copy_to_replicas(static_cast<std::size_t>(count));
  std::vector<data::Batch> parts;
  for (int r = 0; r < count; ++r)
    parts.push_back(inputs_of(batch, shard::split(samples, count, r), devices_[static_cast<std::size_t>(r)]));
  for (auto& other : others_) other->module().set_loss_scale(module().loss_scale());
  std::vector<nn::Tensors> made(parts.size());
  threads_.run(parts.size(), [&](std::size_t r) {
    made[r] = r == 0 ? LocalModel::forward(parts[0]) : others_[r - 1]->forward(parts[r]);
  });
  for (std::size_t r = 0; r < made.size(); ++r)
    for (const auto& output : made[r])
      TRIREME_REQUIRE(output.dim() > 0 && output.size(0) == parts[r].inputs.front().size(0),
                      "plugin.data_parallel: an output of the model does not have the samples along its first "
                      "dimension, so the replicas' outputs cannot be gathered; set replicas = 1");
  return gathered(std::move(made));
}

nn::Tensors DataParallelModel::gathered(std::vector<nn::Tensors> made) const {
  const auto& first = made.front();
  const bool has_graph =
      std::any_of(first.begin(), first.end(), [](const auto& output) { return output.requires_grad(); });
  if (!has_graph || !at::GradMode::is_enabled()) return Gather::concatenated(made);
  auto state = std::make_shared<Gather::State>();
  state->pass = std::make_shared<ForwardPass>(ForwardPass{.outputs = std::move(made)});
  state->arrived = arrived_;
  return Gather::apply(state, at::zeros({}).set_requires_grad(true));
}

void DataParallelModel::backward_replicas() {
  for (const auto& pass : std::exchange(*arrived_, {})) {
    const auto count = pass->outputs.size();
    std::vector<variable_list> roots(count), gradients(count);
    for (std::size_t k = 0; k < pass->gradients.size(); ++k) {
      std::int64_t begin = 0;
      for (std::size_t r = 0; r < count; ++r) {
        const auto& output = pass->outputs[r][k];
        const auto end = begin + output.size(0);
        if (pass->gradients[k].defined() && output.requires_grad()) {
          roots[r].push_back(output);
          gradients[r].push_back(samples_of(pass->gradients[k], {begin, end}, devices_[r]));
        }
        begin = end;
      }
    }
    threads_.run(count, [&](std::size_t r) {
      if (!roots[r].empty()) torch::autograd::backward(roots[r], gradients[r]);
    });
    pass->outputs.clear();  // the outputs' graph may live longer
  }
  if (sync_) reduce();
}

void DataParallelModel::reduce() {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < parameters().size(); ++i) {
    auto& sum = parameters()[i].value.mutable_grad();
    for (auto& other : others_) {
      auto part = std::exchange(other->parameters()[i].value.mutable_grad(), {});
      if (!part.defined()) continue;  // the replica's samples did not use the parameter
      part = part.to(parameters()[i].value.device(), /*non_blocking=*/true);
      // Not in place: with one sample, two parameters' gradients can be views of one tensor.
      sum = sum.defined() ? sum + part : part;
    }
  }
}

void DataParallelModel::check_gradients_complete() const {
  TRIREME_REQUIRE(arrived_->empty(),
                  "plugin.data_parallel: the backward pass has ended at the gathered outputs of the replicas; call "
                  "BoostedOptimizer::backward() or Boosted::backward() instead of the loss's own backward()");
}

void DataParallelModel::drop_gradients() {
  arrived_->clear();
  for (auto& other : others_)
    for (auto& p : other->parameters()) p.value.mutable_grad() = at::Tensor();
}

ScopeGuard DataParallelModel::no_sync() {
  const bool before = std::exchange(sync_, false);
  return ScopeGuard([this, before] { sync_ = before; });
}

void DataParallelModel::train(bool on) {
  LocalModel::train(on);
  for (auto& other : others_) other->train(on);
}

void DataParallelModel::watch_blocks(BlockWatch watch) {
  for (auto& other : others_) other->watch_blocks(watch);
  LocalModel::watch_blocks(std::move(watch));
}

ModelReport DataParallelModel::report() const {
  auto report = LocalModel::report();
  if (!devices_.front().is_cpu()) report.parameter_bytes *= static_cast<std::int64_t>(devices_.size());
  if (!others_.empty())
    report.memory_advice.insert(report.memory_advice.begin(),
                                "start one rank per device with parallel.plugin = \"torch_ddp\": here the first "
                                "replica holds all outputs and the optimizer's state");
  return report;
}

DataParallelOptimizer::DataParallelOptimizer(DataParallelModel& model, const BoostOptions& options, comm::Mesh& mesh)
    : LocalOptimizer(model.parameters(), options, mesh), model_(model) {}

void DataParallelOptimizer::backward(const at::Tensor& loss_sum, const at::Tensor& global_weight) {
  LocalOptimizer::backward(loss_sum, global_weight);
  model_.backward_replicas();
}

void DataParallelOptimizer::zero_grad() {
  LocalOptimizer::zero_grad();
  model_.drop_gradients();
}

StepResult DataParallelOptimizer::apply_gradients(double lr) {
  model_.check_gradients_complete();
  auto result = LocalOptimizer::apply_gradients(lr);
  model_.weights_changed();
  return result;
}

}  // namespace trireme::plugins
