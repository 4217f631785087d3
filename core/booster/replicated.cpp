#include "core/booster/replicated.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/isfinite.h>

#include "core/checkpoint/train_state.h"
#include "core/checkpoint/weights.h"
#include "core/nn/block.h"
#include "core/shard/norm.h"

namespace trireme {
namespace {

std::vector<optim::NamedTensor> named_tensors(const std::vector<nn::Parameter>& parameters) {
  std::vector<optim::NamedTensor> named;
  for (const auto& p : parameters) named.push_back({p.name, p.value});
  return named;
}

}  // namespace

std::vector<nn::Parameter> materialize_whole(ModelSource& source, const BoostOptions& options, c10::Device device,
                                             const Log& log) {
  const auto precision = Precision::parse(options.train.precision);
  nn::materialize(*source.model, options.seed, precision.parameters, device);
  auto parameters = nn::parameters(*source.model);
  // Frozen parameters are marked now, before a reducer counts on a gradient of theirs.
  optim::make_groups(options.optimizer, named_tensors(parameters));
  if (!source.weights.empty()) checkpoint::load_weights(source.weights, parameters, source.head_prefix, log);
  return parameters;
}

ReplicatedModel::ReplicatedModel(std::shared_ptr<nn::Model> model, std::vector<nn::Parameter> parameters,
                                 const BoostOptions& options, c10::Device device)
    : model_(std::move(model)),
      parameters_(std::move(parameters)),
      precision_(Precision::parse(options.train.precision)),
      recompute_(options.train.recompute),
      seed_(options.seed),
      device_(device) {}

nn::Tensors ReplicatedModel::forward(const data::Batch& batch) {
  const nn::Context context{.training = training_, .seed = seed_, .step = batch.step, .sample_ids = batch.sample_ids};
  const AutocastScope autocast(precision_, device_);
  auto outputs = model_->forward(batch.inputs, context, recompute_ && training_);
  // A criterion works in the parameters' dtype, whatever the products were computed in.
  for (auto& output : outputs)
    if (output.is_floating_point()) output = output.to(precision_.parameters);
  return outputs;
}

void ReplicatedModel::train(bool on) {
  training_ = on;
  model_->train(on);
}

ReplicatedOptimizer::ReplicatedOptimizer(std::vector<nn::Parameter>& parameters, const BoostOptions& options,
                                         comm::Mesh& mesh)
    : parameters_(parameters),
      max_norm_(options.train.max_norm),
      mesh_(mesh),
      scaler_(Precision::parse(options.train.precision).loss_scale, options.train, mesh.world().device()) {
  optimizer_ = optim::make(options.optimizer, optim::make_groups(options.optimizer, named_tensors(parameters_)));
}

void ReplicatedOptimizer::backward(const nn::Loss& loss, double global_weight) {
  scaler_.scale(loss.sum / global_weight).backward();
}

StepResult ReplicatedOptimizer::step(double lr) {
  std::vector<at::Tensor> gradients;
  std::vector<shard::Placed> placed;
  for (auto& p : parameters_)
    if (const auto grad = p.value.grad(); grad.defined() && p.value.requires_grad()) {
      gradients.push_back(grad);
      placed.push_back({&p.placement, grad});
    }
  gradient_bytes_ = 0;
  for (const auto& grad : gradients) gradient_bytes_ += static_cast<std::int64_t>(grad.nbytes());
  StepResult result;
  result.found_inf = scaler_.unscale(gradients);
  result.grad_norm = shard::global_norm(placed, mesh_);
  // Without a loss scale nothing searched the gradients: a norm that is not finite leaves the weights as they are.
  const auto skip =
      result.found_inf.defined() ? result.found_inf : at::isfinite(result.grad_norm).logical_not().to(at::kFloat);
  if (max_norm_ > 0 && !gradients.empty())
    at::_foreach_mul_(gradients, shard::clip_factor(result.grad_norm, max_norm_));
  for (auto& group : optimizer_->groups())
    for (auto& slot : group.slots) slot.grad = slot.value.grad();
  optimizer_->step(lr, skip);
  scaler_.update(result.found_inf);
  return result;
}

void ReplicatedOptimizer::zero_grad() {
  // Undefined, not zero: a parameter that a step does not use must not be decayed in that step, in no layout.
  for (auto& p : parameters_) p.value.mutable_grad() = at::Tensor();
}

std::vector<checkpoint::PlacedValue> ReplicatedOptimizer::state() {
  return checkpoint::states_of(*optimizer_, parameters_);
}

}  // namespace trireme
