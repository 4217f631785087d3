#include "zero/sharded_model.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/checkpoint/train_state.h"
#include "core/checkpoint/weights.h"
#include "core/nn/block.h"

namespace trireme::zero {
namespace {

at::ScalarType master_dtype(at::ScalarType working, const ShardedOptions& options) {
  return c10::elementSize(working) < 4 && options.masters ? at::kFloat : working;
}

/// Frozen parameters are marked before buckets are planned. @throws ConfigError
void freeze(nn::Model& model, const config::OptimizerOptions& options) {
  std::vector<optim::NamedTensor> named;
  for (const auto& parameter : nn::declarations(model)) named.push_back({parameter.name, parameter.value});
  optim::make_groups(options, named);
}

}  // namespace

std::int64_t bucket_elements(const ShardedOptions& options, std::int64_t model_elements) {
  return options.bucket_elements.value_or(default_bucket_elements(model_elements));
}

std::unique_ptr<ShardedModel> ShardedModel::make(ModelSource source, const BoostOptions& options,
                                                 const ShardedOptions& sharded, GradGroups groups, c10::Device device,
                                                 const Log& log) {
  const auto precision = Precision::pure(options.train.precision);
  auto& model = *source.model;
  freeze(model, options.optimizer);
  const auto elements = bucket_elements(sharded, nn::parameter_count(model));
  auto buckets = plan_buckets(nn::declarations(model), elements, groups.shards.size());
  auto weights = std::make_unique<FlatWeights>(model, std::move(buckets), groups.shards, groups.everyone,
                                               FlatWeightsOptions{.working = precision.parameters,
                                                                  .master = master_dtype(precision.parameters, sharded),
                                                                  .device = device,
                                                                  .offload = sharded.offload,
                                                                  .seed = options.seed});
  if (!source.weights.empty()) checkpoint::load_weights(source.weights, weights->slices(), source.head_prefix, log);
  weights->publish_all();
  weights->wait();
  return std::unique_ptr<ShardedModel>(new ShardedModel(std::move(source.model), std::move(weights), options, sharded,
                                                        precision, std::move(groups), device));
}

ShardedModel::ShardedModel(std::shared_ptr<nn::Model> model, std::unique_ptr<FlatWeights> weights,
                           const BoostOptions& options, const ShardedOptions& sharded, const Precision& precision,
                           GradGroups groups, c10::Device device)
    : ReplicatedModel(model, nn::parameters(*model), options, precision, device),
      options_(sharded),
      weights_(std::move(weights)),
      working_(precision.parameters) {
  const int parts = groups.shards.size();
  sync_ = std::make_unique<GradSync>(weights_->buckets(), weights_->leaves(), std::move(groups),
                                     GradSyncOptions{.partition = options_.partition_gradients,
                                                     .overlap = options_.overlap_reduce,
                                                     .communication_dtype = options_.communication_dtype,
                                                     .accumulation_dtype = options_.accumulation_dtype});
  sync_->hook();
  write_notes(parts);
}

void ShardedModel::write_notes(int parts) {
  std::int64_t largest = 0, elements = 0;
  for (const auto& bucket : weights_->buckets()) {
    largest = std::max(largest, bucket.layout.payload());
    elements += bucket.layout.payload();
  }
  auto note = fmt::format("of {} parameters a rank updates 1/{}; {} gradient buckets of up to {}",
                          text::thousands(elements), parts, weights_->buckets().size(), text::thousands(largest));
  if (!options_.bucket_elements && default_bucket_elements(elements) < 12 * 1024 * 1024)
    note += " (12 Mi, shrunk to an eighth of the model)";
  notes_.push_back(std::move(note));
  if (options_.partition_gradients && options_.hold_gradients)
    notes_.push_back("no_sync: gradients are held whole over the microbatches of a step and reduced once");
}

nn::Tensors ShardedModel::forward(const data::Batch& batch) {
  if (!options_.overlap_gather) weights_->wait();
  if (!options_.cast_inputs) return ReplicatedModel::forward(batch);
  auto cast = batch;
  for (auto& input : cast.inputs)
    if (input.is_floating_point()) input = input.to(working_);
  return ReplicatedModel::forward(cast);
}

nn::Tensors ShardedModel::run(const std::shared_ptr<nn::Block>& block, nn::Tensors inputs, const nn::Context& context) {
  weights_->wait(*block);
  return ReplicatedModel::run(block, std::move(inputs), context);
}

ScopeGuard ShardedModel::no_sync() {
  const bool before = sync_->held();
  sync_->hold(true);
  return ScopeGuard([this, before] { sync_->hold(before); });
}

std::vector<shard::Slice> ShardedModel::weights() {
  weights_->wait();
  return checkpoint::weights_of(weights_->slices());
}

void ShardedModel::weights_changed() {
  weights_->publish_all();
  weights_->wait();
}

std::vector<shard::Slice> ShardedModel::gradients() {
  sync_->finish();
  std::vector<shard::Slice> out;
  const auto& buckets = weights_->buckets();
  for (std::size_t b = 0; b < buckets.size() && buckets[b].trained; ++b)
    for (std::size_t i = 0; i < buckets[b].parameters.size(); ++i) {
      const auto index = buckets[b].parameters[i];
      if (const auto unused = sync_->unused(index); unused.defined() && unused.item<bool>()) continue;
      const auto& slice = weights_->slices()[weights_->first_slice(b) + i];
      out.push_back({slice.placement, weights_->cut(sync_->parts()[b], b, i)});
    }
  return out;
}

}  // namespace trireme::zero
