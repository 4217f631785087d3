#include "zero/sharded_model.h"

#include <ATen/TensorOperators.h>

#include "core/checkpoint/train_state.h"
#include "core/checkpoint/weights/adapters.h"
#include "core/nn/block.h"

namespace trireme::zero {

std::vector<optim::NamedTensor> named_parameters(nn::Model& model) {
  std::vector<optim::NamedTensor> named;
  for (const auto& declared : {nn::declarations(model), nn::remote_declarations(model)})
    for (const auto& parameter : declared)
      named.push_back({parameter.name, parameter.value, !parameter.value.requires_grad()});
  return named;
}

static Precision precision_of(const BoostOptions& options, const ShardedOptions& sharded) {
  auto precision = Precision::pure(options.train.precision);
  if (!sharded.outputs_fp32) precision.loss = precision.parameters;
  if (sharded.cast_inputs) precision.inputs = precision.parameters;
  return precision;
}

FlatWeightsOptions weights_options(const BoostOptions& options, bool masters, c10::Device device) {
  const auto working = Precision::pure(options.train.precision).parameters;
  return {.working = working,
          .master = c10::elementSize(working) < 4 && masters ? at::kFloat : working,
          .device = device,
          .seed = options.seed};
}

std::unique_ptr<FlatWeights> make_weights(const ModelSource& source, const FlatWeightsOptions& options,
                                          std::vector<Bucket> buckets, std::vector<Residency> residencies,
                                          const Log& log) {
  auto weights = std::make_unique<FlatWeights>(*source.model, std::move(buckets), std::move(residencies), options);
  checkpoint::load_weights_and_adapters(source.weights, source.adapters, weights->slices(), source.head_prefix, log,
                                        checkpoint::other_tensors(*source.model));
  weights->copy_all_from_masters();
  weights->wait();
  return weights;
}

ShardedModel::ShardedModel(std::shared_ptr<nn::Model> model, std::unique_ptr<FlatWeights> weights,
                           const BoostOptions& options, const ShardedOptions& sharded, c10::Device device)
    : LocalModel(model, nn::parameters(*model), options, precision_of(options, sharded), device),
      options_(sharded),
      weights_(std::move(weights)) {
  sync_ = std::make_unique<GradSync>(weights_->buckets(), weights_->leaves(),
                                     GradSyncOptions{.partition = options_.partition_gradients,
                                                     .overlap = options_.overlap_reduce,
                                                     .deferred_group = options_.deferred_group,
                                                     .communication_dtype = options_.communication_dtype,
                                                     .accumulation_dtype = options_.accumulation_dtype,
                                                     .on_host = [weights = weights_.get()](std::size_t bucket) {
                                                       return weights->residency(bucket).offload_master;
                                                     }});
  sync_->hook();
  set_block_hooks({.before = [this](const std::shared_ptr<nn::Block>& block, nn::Tensors inputs) {
    for (const auto bucket : weights_->buckets_of(*block)) weights_->wait(bucket);
    return inputs;
  }});
}

at::Tensor ShardedModel::scaled_loss(const at::Tensor& loss) const { return options_.counts_loss ? loss : loss * 0; }

ModelReport ShardedModel::report() const {
  auto report = LocalModel::report();
  report.parameter_bytes = weights_->weight_bytes();
  return report;
}

ScopeGuard ShardedModel::no_sync() {
  const bool before = sync_->held();
  sync_->hold(true);
  return ScopeGuard([this, before] { sync_->hold(before); });
}

std::vector<shard::Slice> ShardedModel::weights() {
  weights_->wait();
  return current_weights();
}

std::vector<shard::Slice> ShardedModel::current_weights() { return checkpoint::weights_of(weights_->slices()); }

void ShardedModel::weights_changed() {
  weights_->copy_all_from_masters();
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
