#include "core/booster/local_model.h"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/isfinite.h>

#include "core/base/error.h"
#include "core/base/random.h"
#include "core/booster/kernel_choice.h"
#include "core/booster/partial_recompute.h"
#include "core/checkpoint/train_state.h"
#include "core/checkpoint/weights/adapters.h"
#include "core/comm/flight/recorder.h"
#include "core/nn/autograd/recompute.h"
#include "core/nn/block.h"
#include "core/shard/norm.h"

namespace trireme {
namespace {

std::vector<optim::NamedTensor> named_tensors(const std::vector<nn::Parameter>& parameters) {
  std::vector<optim::NamedTensor> named;
  for (const auto& p : parameters) named.push_back({p.name, p.value, !p.value.requires_grad()});
  return named;
}

}  // namespace

std::vector<nn::Parameter> materialize_whole(ModelSource& source, const BoostOptions& options, c10::Device device,
                                             const Log& log) {
  const auto precision = Precision::parse(options.train.precision);
  nn::materialize(*source.model, options.seed, precision.parameters, device);
  auto parameters = nn::parameters(*source.model);
  // Marks frozen parameters before a reducer expects gradients for them.
  optim::make_groups(options.optimizer, named_tensors(parameters));
  checkpoint::load_weights_and_adapters(source.weights, source.adapters, parameters, source.head_prefix, log,
                                        checkpoint::other_tensors(*source.model));
  return parameters;
}

LocalModel::LocalModel(std::shared_ptr<nn::Model> model, std::vector<nn::Parameter> parameters,
                       const BoostOptions& options, c10::Device device)
    : LocalModel(std::move(model), std::move(parameters), options, Precision::parse(options.train.precision), device) {}

LocalModel::LocalModel(std::shared_ptr<nn::Model> model, std::vector<nn::Parameter> parameters,
                       const BoostOptions& options, const Precision& precision, c10::Device device)
    : model_(std::move(model)),
      parameters_(std::move(parameters)),
      precision_(precision),
      train_options_(options.train),
      seed_(options.seed),
      device_(device) {
  if (options.train.offload_activations) offload_ = std::make_shared<nn::ActivationOffload>(device_);
  if (model_->stage_blocks()) return;
  if (auto line = choose_kernels(*model_, options.train, precision_, device_); !line.empty()) note(std::move(line));
  recompute_only(recomputed_blocks(options.train, {static_cast<std::int64_t>(model_->blocks().size())}));
}

nn::Tensors LocalModel::forward(const data::Batch& batch) {
  return as_outputs(forward_blocks(0, model_->blocks().size(), first_inputs(batch), batch));
}

at::Tensor LocalModel::cast(const at::Tensor& input) const {
  return precision_.inputs && input.is_floating_point() ? input.to(*precision_.inputs) : input;
}

nn::Tensors LocalModel::first_inputs(const data::Batch& batch) const {
  auto inputs = model_->first_inputs(batch.inputs);
  for (auto& input : inputs) input = cast(input);
  return inputs;
}

nn::Tensors LocalModel::forward_blocks(std::size_t begin, std::size_t end, nn::Tensors inputs,
                                       const data::Batch& batch) {
  auto side = model_->side_inputs(batch.inputs);
  for (auto& [name, input] : side) input = cast(input);
  const bool to_gpu = training_ && device_.is_cuda() && batch.sample_ids.is_cpu();  // once for all dropout layers
  nn::Context context{
      .training = training_,
      .seed = seed_,
      .step = batch.step,
      .sample_ids = to_gpu ? batch.sample_ids.pin_memory().to(device_, /*non_blocking=*/true) : batch.sample_ids,
      .tokens = model_->tokens(model_->first_inputs(batch.inputs)),
      .side = std::move(side),
      .loss_weight = batch.global_weight,
      .loss_scale = model_->loss_scale()};
  const AutocastScope autocast(precision_, device_);
  if (hooks_.begin) hooks_.begin();
  for (std::size_t i = begin; i < end; ++i) {
    comm::flight::set_block(static_cast<int>(i));
    const auto& block = model_->blocks()[i];
    if (training_ && block->uses_torch_generators()) at::manual_seed(draw_key(batch, i));
    if (i + 1 == model_->blocks().size() && block->returns_scores() && batch.loss_of_head)
      context.loss_of_head = [batch](const nn::Head& head) { return batch.loss_of_head(head, batch); };
    if (hooks_.before) inputs = hooks_.before(block, std::move(inputs));
    inputs = run(block, std::move(inputs), context);
    if (hooks_.after) inputs = hooks_.after(block, std::move(inputs));
    if (watch_ && training_) watch_(i, batch, inputs);
  }
  comm::flight::set_block(-1);
  return inputs;
}

/// The seed of what a user's own module draws from LibTorch's generators. It depends on the step, the samples and the
/// block alone, so that a resumed run, recomputation and pipelines of any schedule draw the same.
std::uint64_t LocalModel::draw_key(const data::Batch& batch, std::size_t block) const {
  const auto& ids = batch.sample_ids;  // a program's own batch may have none
  const auto first = ids.defined() && ids.is_cpu() && ids.numel() > 0 ? ids[0].item<std::int64_t>() : 0;
  return random::mix(seed_, batch.step, first, block);
}

nn::Tensors LocalModel::as_outputs(nn::Tensors made) const {
  for (auto& output : made)
    if (output.is_floating_point() && (output.dim() > 0 || output.element_size() < 4))  // a loss stays as it is
      output = output.to(precision_.loss);
  return made;
}

nn::Tensors LocalModel::run(const std::shared_ptr<nn::Block>& block, nn::Tensors inputs, const nn::Context& context) {
  if (!train_options_.recompute || !training_ || not_recomputed_.count(block.get()) != 0)
    return block->forward(std::move(inputs), context);
  auto function = nn::recomputable(block, context);
  function.offload = offload_;
  return nn::run_recomputable(std::move(function), std::move(inputs));
}

void LocalModel::recompute_only(const std::vector<bool>& blocks) {
  TRIREME_CHECK(blocks.size() == model_->blocks().size(), "got {} recompute flags for {} blocks", blocks.size(),
                model_->blocks().size());
  not_recomputed_.clear();
  for (std::size_t i = 0; i < blocks.size(); ++i)
    if (!blocks[i]) not_recomputed_.insert(model_->blocks()[i].get());
  // A block that appears twice in the list recomputes if either entry says so.
  for (std::size_t i = 0; i < blocks.size(); ++i)
    if (blocks[i]) not_recomputed_.erase(model_->blocks()[i].get());
  for (auto* layer : recomputed_layers(*model_, train_options_, blocks)) layer->set_recompute(true);
}

void LocalModel::train(bool on) {
  training_ = on;
  model_->train(on);
}

std::vector<shard::Slice> LocalModel::weights() { return checkpoint::weights_of(parameters_); }

std::vector<shard::Slice> LocalModel::gradients() {
  std::vector<shard::Slice> out;
  for (const auto& p : parameters_)
    if (p.value.grad().defined()) out.push_back({p.placement, p.value.grad()});
  return out;
}

ModelReport LocalModel::report() const {
  std::size_t bytes = 0;
  for (const auto& p : parameters_) bytes += p.value.nbytes();
  return {.parameter_bytes = static_cast<std::int64_t>(bytes),
          .notes = notes_,
          .memory_advice = {"partition weights and optimizer state over the ranks (parallel.plugin = \"gemini\", or "
                            "parallel.zero = 3)"}};
}

LocalOptimizer::LocalOptimizer(std::vector<nn::Parameter>& parameters, const BoostOptions& options, comm::Mesh& mesh)
    : parameters_(parameters),
      mesh_(mesh),
      scaler_(Precision::parse(options.train.precision).loss_scale, options.train.loss_scale, mesh.world().device()) {
  set_max_norm(options.train.max_norm);
  optimizer_ = optim::make(options.optimizer, optim::make_groups(options.optimizer, named_tensors(parameters_)));
}

void LocalOptimizer::backward(const at::Tensor& loss_sum, const at::Tensor& global_weight) {
  scaler_.scale(part_of_mean(loss_sum, global_weight)).backward();
}

StepResult LocalOptimizer::apply_gradients(double lr) {
  std::vector<at::Tensor> gradients;
  std::vector<shard::PlacedTensor> placed;
  for (auto& p : parameters_)
    if (const auto grad = p.value.grad(); grad.defined() && p.value.requires_grad()) {
      gradients.push_back(grad);
      placed.push_back({&p.placement, grad});
    }
  gradient_bytes_ = 0;
  for (const auto& grad : gradients) gradient_bytes_ += static_cast<std::int64_t>(grad.nbytes());
  StepResult result;
  result.found_inf = scaler_.unscale(gradients);
  result.grad_norm = shard::global_norm(placed, mesh_, {});
  // Without a loss scale nothing has checked the gradients; if the norm is not finite, the weights do not change.
  if (!result.found_inf.defined()) result.found_inf = at::isfinite(result.grad_norm).logical_not().to(at::kFloat);
  if (max_norm() > 0 && !gradients.empty())
    at::_foreach_mul_(gradients, shard::clip_factor(result.grad_norm, max_norm()));
  for (auto& group : optimizer_->groups())
    for (auto& slot : group.slots) slot.grad = slot.value.grad();
  optimizer_->step(lr, result.found_inf);
  scaler_.update(result.found_inf);
  return result;
}

void LocalOptimizer::zero_grad() {
  // Undefined, not zero: a parameter that a step does not use must not be decayed in that step, in any layout.
  for (auto& p : parameters_) p.value.mutable_grad() = at::Tensor();
}

std::vector<shard::Slice> LocalOptimizer::state() { return checkpoint::states_of(*optimizer_, parameters_); }

}  // namespace trireme
