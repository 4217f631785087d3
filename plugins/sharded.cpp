#include "plugins/sharded.h"

#include <cmath>

#include "core/base/text.h"
#include "core/nn/block.h"
#include "zero/gemini/chunks.h"
#include "zero/gemini/gathered_model.h"
#include "zero/sharded_optimizer.h"

namespace trireme::plugins {
namespace {

std::optional<at::ScalarType> dtype_of(const std::string& name) {
  if (name == "fp32") return at::kFloat;
  if (name == "bf16") return at::kBFloat16;
  if (name == "fp16") return at::kHalf;
  return std::nullopt;
}

zero::ShardedOptions sharded(const ShardedKeys& keys, const ShardedPlan& plan) {
  zero::ShardedOptions out;
  out.partition_gradients = plan.stage >= 2;
  out.overlap_reduce = keys.overlap_communication;
  out.overlap_gather = keys.overlap_allgather && plan.stage < 3;  // in stage 3, a step does not gather weights
  out.cast_inputs = plan.cast_inputs;
  out.hold_gradients = plan.hold_gradients;
  out.deferred_group = plan.deferred_group;
  out.counts_loss = plan.counts_loss;
  out.communication_dtype = dtype_of(keys.communication_dtype);
  out.accumulation_dtype = dtype_of(keys.grad_accum_dtype);
  return out;
}

std::int64_t held_elements(const std::vector<nn::Declaration>& parameters) {
  std::int64_t held = 0;
  for (const auto& parameter : parameters) held += parameter.placement.local_numel();
  return held;
}

/// The number of elements of a bucket, and a note for the log.
std::pair<std::int64_t, std::string> bucket_size(const std::optional<double>& wanted, std::int64_t parameters) {
  if (wanted) return {mebi(*wanted), ""};
  const auto size = zero::default_bucket_elements(parameters);
  return {size, size < 12 * 1024 * 1024
                    ? fmt::format(" of {} elements (default 12 Mi, reduced for a small model)", text::thousands(size))
                    : ""};
}

std::unique_ptr<zero::ShardedModel> make_model(const ModelSource& source, std::unique_ptr<zero::FlatWeights> weights,
                                               const BoostOptions& options, const ShardedKeys& keys,
                                               const ShardedPlan& plan, const zero::GradGroups& groups,
                                               c10::Device device) {
  if (plan.stage < 3)
    return std::make_unique<zero::ShardedModel>(source.model, std::move(weights), options, sharded(keys, plan), groups,
                                                device);
  const std::size_t prefetch = keys.overlap_allgather ? 1 : 0;
  return std::make_unique<zero::GatheredModel>(source.model, std::move(weights), options, sharded(keys, plan), groups,
                                               device, prefetch, nullptr);
}

}  // namespace

void check_sharded_options(const config::Table* section, const ShardedKeys& keys, const std::string& precision) {
  check_masters(section, keys.master_weights, precision);
  const auto refuse = [&](bool wrong, const char* key, const std::string& why) {
    if (wrong) config::fail(section, key, why);
  };
  const std::string gradients = precision == "tf32" ? "fp32" : precision;
  for (const auto& [key, value] : {std::pair{"communication_dtype", keys.communication_dtype},
                                   std::pair{"grad_accum_dtype", keys.grad_accum_dtype}}) {
    refuse(value == gradients, key, fmt::format("has no effect: gradients are {} anyway; remove it", gradients));
    refuse(precision == "fp64" && value != "same", key, "would round the gradients of an fp64 run; remove it");
  }
}

Sharded boost_sharded(const ModelSource& source, const BoostOptions& options, const ShardedKeys& keys,
                      const ShardedPlan& plan, const zero::GradGroups& groups, comm::Mesh& mesh, const Log& log) {
  const auto device = mesh.world().device();
  zero::freeze(*source.model, options.optimizer);
  const auto parameters = nn::declarations(*source.model);
  const auto held = held_elements(parameters);
  const auto [elements, said] = bucket_size(plan.bucket_mi, held);
  const auto parts = groups.shards.size();
  const bool gathered = plan.stage == 3;
  const auto gradient_group_of = [&](std::size_t i) {
    return plan.gradient_group_of ? plan.gradient_group_of(parameters[i].name) : 0;
  };
  auto buckets = gathered ? zero::plan_chunks(*source.model, elements, parts, gradient_group_of)
                          : zero::plan_buckets(parameters, elements, parts, gradient_group_of);
  const auto count = buckets.size();
  std::vector<zero::Residency> residencies(count, {.replicated = !gathered, .offload_master = keys.cpu_offload});
  auto in_memory = zero::weights_options(options, keys.master_weights, device);
  in_memory.axes = groups.axes;
  auto weights = zero::make_weights(source, in_memory, std::move(buckets), std::move(residencies), groups, log);
  auto model = make_model(source, std::move(weights), options, keys, plan, groups, device);
  const auto what = gathered ? "chunk" : "bucket";
  model->note(fmt::format("{} updates {} parameters; {} {}{}{}{}",
                          source.model->stage_blocks() ? "rank 0" : "each rank",
                          parts > 1 ? fmt::format("1/{} of {}", parts, text::thousands(held)) : text::thousands(held),
                          count, gathered ? what : "gradient bucket", count == 1 ? "" : "s", said,
                          gathered ? "; weights are gathered block by block" : ""));
  if (keys.verbose)
    for (const auto& line : model->flat().describe(what)) log.note("{}", line);
  const double power = keys.norm_type == "2" ? 2 : INFINITY;
  auto optimizer = std::make_unique<zero::ShardedOptimizer>(*model, options,
                                                            zero::ShardedOptimizer::Norm{plan.norm_axes, power}, mesh);
  return {std::move(model), std::move(optimizer)};
}

}  // namespace trireme::plugins
