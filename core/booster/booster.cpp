#include "core/booster/booster.h"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/tensor.h>

#include <algorithm>

#include "core/base/error.h"
#include "core/base/random.h"
#include "core/base/trace.h"
#include "core/booster/buffers.h"
#include "core/booster/precision.h"
#include "core/nn/batch_norm.h"
#include "core/nn/block.h"

namespace trireme {
namespace {

/// Sums the task's weight over the microbatches of all ranks. A batch in which nothing counts has no loss to divide.
void weigh(const Task& task, const comm::Group& ranks, data::StepBatch& step) {
  at::Tensor sum;
  for (const auto& micro : step.micro) {
    const auto weight = task.weight(micro);
    if (!weight.defined()) return;  // the samples, as the loader has it
    sum = sum.defined() ? sum + weight : weight.to(at::kDouble, /*non_blocking=*/false, /*copy=*/true);
  }
  ranks.all_reduce(sum);
  sum = sum.where(sum.ne(0), at::ones_like(sum));
  for (auto& micro : step.micro) micro.global_weight = sum;
}

/// Ranks hold parts of the logits, which only the plugin's cross-entropy can interpret.
Criterion of_sharded_logits(std::shared_ptr<const Task> task, nn::CrossEntropy parallel) {
  return
      [task = std::move(task), parallel = std::move(parallel)](const nn::Tensors& outputs, const data::Batch& batch) {
        int calls = 0;
        const auto check = [&calls] {
          if (calls == 1) return;
          throw ConfigError(
              fmt::format("Task::takes_sharded_logits() is true, but loss() called LossOptions::cross_entropy {} times "
                          "instead of once; "
                          "call it once, or return false to get complete logits",
                          calls));
        };
        const Task::LossOptions how{
            .cross_entropy = [&](const at::Tensor& logits, const at::Tensor& labels, double smoothing) {
              ++calls;
              return parallel(logits, labels, smoothing);
            }};
        at::Tensor loss;
        try {
          loss = task->loss(outputs, batch, how);
        } catch (const DataError&) {  // possibly labels that are outside this rank's classes
          check();
          throw;
        }
        check();
        return loss;
      };
}

/// The inputs of the first readable sample, as a batch.
nn::NamedTensors example_of(data::Dataset& data) {
  for (std::int64_t index = 0; index < data.size(); ++index)
    if (auto sample = data.get(index, /*epoch=*/0, /*augment=*/false))
      return data.collate({std::move(*sample)}, {index}).inputs;
  return {};
}

}  // namespace

std::unique_ptr<comm::World> launch(const comm::WorldOptions& options) {
  return comm::World::start(comm::detect(), options);
}

Booster::Booster(comm::World& world, std::unique_ptr<Plugin> plugin, BoostOptions options)
    : world_(world), plugin_(std::move(plugin)), options_(std::move(options)), log_(world.rank()) {
  TRIREME_REQUIRE(plugin_ != nullptr, "Booster: the plugin is null; pass one from load_plugin()");
  check_options(options_);
  set_float32_products(Precision::parse(options_.train.precision), world_.device());
  mesh_ = std::make_unique<comm::Mesh>(world_, plugin_->axes(world_.size()));
  const auto seed = static_cast<std::int64_t>(options_.seed);
  auto least = at::tensor({std::int64_t{plugin_->reads_inputs(*mesh_)}, seed, ~seed}).to(world_.device());
  world_.group().all_reduce(least, comm::ReduceOp::min);
  least = least.cpu();
  const auto* values = least.const_data_ptr<std::int64_t>();
  all_read_inputs_ = values[0] != 0;
  // Weights, dropout masks and the sample order are drawn on each rank and never compared.
  if (values[1] != ~values[2])
    throw ConfigError(
        fmt::format("BoostOptions::seed is {} on one rank and {} on another; set the same seed on all ranks, which "
                    "must draw the same random numbers",
                    static_cast<std::uint64_t>(values[1]), static_cast<std::uint64_t>(~values[2])));
}

data::LoaderOptions Booster::loader_options() const {
  const auto& group = mesh_->group(plugin_->data_axes());
  data::LoaderOptions options;
  options.dp_rank = group.rank();
  options.dp_size = group.size();
  options.seed = options_.seed;
  if (!plugin_->reads_inputs(*mesh_)) options.needed = side_inputs_;
  options.strict = !all_read_inputs_;
  options.workers = options_.loading.workers;
  options.prefetch = options_.loading.prefetch;
  options.dtype = Precision::parse(options_.train.precision).parameters;
  options.device = world_.device();
  return options;
}

Boosted Booster::boost(BoostInputs inputs) {
  TRIREME_REQUIRE(inputs.source.model && inputs.task && inputs.data,
                  "Booster::boost() needs a model, a task and data, but one of them is not set");
  const auto& train = options_.train;
  for (const auto& name : inputs.source.model->side_input_names()) side_inputs_.push_back(name);
  auto loading = loader_options();
  data::check_shares(train.global_batch, loading.dp_size);
  loading.global_batch = train.global_batch;
  loading.micro_batch =
      plugin_->micro_batch(train.micro_batch, (train.global_batch + loading.dp_size - 1) / loading.dp_size);
  loading.shuffle = train.shuffle;
  loading.augment = true;
  loading.drop_last = train.drop_last;
  // Random draws of a user's own modules: repeatable, and with a different stream for each part of the data.
  at::manual_seed(random::mix(options_.seed, static_cast<std::uint64_t>(loading.dp_rank)));
  Boosted run;
  run.task = std::move(inputs.task);
  inputs.source.sharded_logits = run.task->takes_sharded_logits();
  loading.on_next = [group = data_group(), task = run.task](data::StepBatch& step) { weigh(*task, group, step); };
  if (!inputs.source.example) inputs.source.example = [data = inputs.data] { return example_of(*data); };
  run.loader = std::make_unique<data::Loader>(std::move(inputs.data), loading);
  const auto steps = train.epochs * run.loader->steps_per_epoch();
  run.lr_schedule = std::make_unique<optim::LrSchedule>(options_.lr_schedule, options_.optimizer.lr,
                                                        std::min(steps, train.max_steps.value_or(steps)));
  auto result = plugin_->boost(std::move(inputs.source), options_, *mesh_, log_);
  TRIREME_REQUIRE(result.model && result.optimizer, "the plugin \"{}\" returned no model or no optimizer",
                  plugin_->name());
  run.model = std::move(result.model);
  run.optimizer = std::move(result.optimizer);
  synchronise_norms(run.model->module());
  run.optimizer->set_buffer_sync(
      std::make_shared<BufferSync>(run.model->module(), *mesh_, plugin_->broadcasts_buffers()));
  const auto parallel = std::move(result.cross_entropy);
  run.criterion = parallel ? of_sharded_logits(run.task, parallel)
                           : [task = run.task](const nn::Tensors& outputs, const data::Batch& batch) {
                               return task->loss(outputs, batch, {});
                             };
  return run;
}

void Booster::set_global_weight(const Boosted& run, data::StepBatch& step) { weigh(*run.task, data_group(), step); }

/// Connects synchronised layers to the ranks that share the batch.
void Booster::synchronise_norms(nn::Model& model) {
  const auto& group = data_group();
  if (group.size() == 1) return;
  model.apply([&group](torch::nn::Module& module) {
    if (auto* norm = dynamic_cast<nn::BatchNorm*>(&module); norm != nullptr && norm->options().synchronised)
      norm->set_sum_over_ranks([group](at::Tensor values) { group.all_reduce(std::move(values)); });
  });
}

at::Tensor Booster::forward_backward(Boosted& run, const data::StepBatch& batch, std::vector<nn::Tensors>* outputs) {
  run.model->train(true);
  if (auto* runner = run.model->runner())
    return runner->forward_backward(batch, run.criterion, *run.optimizer, outputs);
  return forward_backward_by_pieces(run, batch, outputs);
}

at::Tensor Booster::forward_backward_by_pieces(Boosted& run, const data::StepBatch& batch,
                                               std::vector<nn::Tensors>* outputs) {
  at::Tensor sum;
  for (std::size_t i = 0; i < batch.micro.size(); ++i) {
    const auto& micro = batch.micro[i];
    // With most plugins gradients are reduced once, during the backward pass of the last microbatch.
    const bool reduce = i + 1 == batch.micro.size() || run.model->reduces_each_microbatch();
    const auto local = reduce ? ScopeGuard({}) : run.model->no_sync();
    nn::Tensors made;
    at::Tensor loss;
    {
      const trace::Scope scope("forward", static_cast<std::int64_t>(i));
      made = run.model->forward(micro);
      loss = run.criterion(made, micro);
    }
    {
      const trace::Scope scope("backward", static_cast<std::int64_t>(i));
      run.optimizer->backward(loss, micro.global_weight);
    }
    const auto part = part_of_mean(loss.detach(), micro.global_weight);
    sum = sum.defined() ? sum + part : part;
    if (outputs == nullptr) continue;
    outputs->emplace_back();
    for (const auto& output : made) outputs->back().push_back(output.detach());
  }
  return sum;
}

TrainStep Booster::train_step(Boosted& run, const data::StepBatch& batch) {
  auto sum = forward_backward(run, batch);
  // The loss is reduced while the optimizer steps.
  auto sent = loss_group().all_reduce_async(sum);
  TrainStep step;
  step.lr = run.lr_schedule->lr(run.step);
  {
    const trace::Scope scope("optimizer");
    step.result = run.optimizer->step(step.lr);
  }
  run.optimizer->zero_grad();
  sent.wait();
  step.loss = sum;
  ++run.step;
  return step;
}

std::unique_ptr<data::Loader> Booster::evaluation_loader(std::shared_ptr<data::Dataset> data,
                                                         std::int64_t batch) const {
  auto options = loader_options();
  options.micro_batch = batch;
  options.global_batch = batch * options.dp_size;
  options.evaluation = true;
  return std::make_unique<data::Loader>(std::move(data), options);
}

}  // namespace trireme
