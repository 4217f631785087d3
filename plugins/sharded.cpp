#include "plugins/sharded.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/base/text.h"
#include "core/nn/block.h"
#include "core/nn/layers/lora.h"
#include "plugins/compare_gradients.h"
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

/// Ranks that differ only along an axis that sums gradients but no losses, such as sp, have the same loss: the first
/// one's counts.
bool counts_loss(const comm::Mesh& mesh) {
  const auto losses = mesh.axes(&comm::AxisKind::sums_losses), gradients = mesh.axes(&comm::AxisKind::sums_gradients);
  return std::all_of(gradients.begin(), gradients.end(), [&](const std::string& axis) {
    return mesh.coordinate(axis) == 0 || std::find(losses.begin(), losses.end(), axis) != losses.end();
  });
}

zero::ShardedOptions sharded(const ShardedPluginOptions& keys, const ShardedPlan& plan, const comm::Mesh& mesh) {
  zero::ShardedOptions out;
  out.partition_gradients = plan.stage >= 2;
  out.overlap_reduce = keys.overlap_communication;
  out.overlap_gather = keys.overlap_allgather && plan.stage < 3;  // in stage 3, a step does not gather weights
  out.outputs_fp32 = plan.zero3 == nullptr || plan.zero3->force_outputs_fp32;
  out.cast_inputs = plan.cast_inputs;
  out.hold_gradients = plan.hold_gradients;
  out.deferred_group = plan.deferred_group;
  out.counts_loss = counts_loss(mesh);
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

/// The buckets of stages 0 to 2, or the chunks of stage 3, and where each is kept.
struct Memory {
  std::vector<zero::Bucket> buckets;
  std::vector<zero::Residency> residencies{};
  std::unique_ptr<zero::ChunkManager> chunk_manager{};
  std::string size_note{};
};

Memory plan_memory(const Measured& run, const ShardedPluginOptions& keys, const ShardedPlan& plan,
                   at::ScalarType working, const Log& log) {
  const auto& model = run.source.model;
  const auto parameters = nn::declarations(*model);
  zero::BucketRules rules{.ranks = &run.reduction};
  if (plan.gradient_group_of)
    rules.gradient_group = [&](std::size_t i) { return plan.gradient_group_of(parameters[i].name); };
  if (plan.stage < 3) {
    auto [elements, note] = bucket_size(plan.bucket_mi, held_elements(parameters));
    rules.elements = elements;
    Memory memory{zero::plan_buckets(parameters, rules)};
    memory.residencies.assign(memory.buckets.size(), {.replicated = true, .offload_master = keys.cpu_offload});
    memory.size_note = note;
    return memory;
  }
  Memory memory{make_chunks(*model, run.keys, rules)};
  std::vector<std::int64_t> slices;
  for (const auto& chunk : memory.buckets)
    slices.push_back(chunk.layout.part_size() * static_cast<std::int64_t>(c10::elementSize(working)));
  memory.chunk_manager = make_chunk_manager(run, slices, log);
  memory.residencies = memory.chunk_manager ? memory.chunk_manager->careful(slices)
                                            : residencies_of(memory.buckets, run.keys, plan.deferred_group);
  return memory;
}

/// Adds the notes for the header of a run.
void describe(zero::ShardedModel& model, const ShardedPluginOptions& keys, const ShardedPlan& plan, int parts,
              const Memory& memory, const Log& log) {
  const auto held = held_elements(nn::declarations(model.module()));
  const bool zero3 = plan.stage == 3;
  const auto count = model.flat().buckets().size();
  model.note(fmt::format("{} updates {} parameters; {} {}{}{}{}",
                         model.module().stage_blocks() ? "rank 0" : "each rank",
                         parts > 1 ? fmt::format("1/{} of {}", parts, text::thousands(held)) : text::thousands(held),
                         count, zero3 ? "chunk" : "gradient bucket", count == 1 ? "" : "s", memory.size_note,
                         zero3 ? "; weights are gathered block by block" : ""));
  if (keys.verbose)
    for (const auto& line : model.flat().describe(zero3 ? "chunk" : "bucket")) log.note("{}", line);
}

}  // namespace

void check_sharded_options(const config::Table* section, const ShardedPluginOptions& keys,
                           const std::string& precision) {
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

Sharded boost_sharded(const Plugin& plugin, const ModelSource& source, const BoostOptions& options,
                      const ShardedPluginOptions& keys, const ShardedPlan& plan, comm::Mesh& mesh, const Log& log) {
  const auto device = mesh.world().device();
  const Zero3Options none, &zero3 = plan.zero3 != nullptr ? *plan.zero3 : none;
  // Marks the parameters that the user's patterns freeze, before buckets are planned.
  optim::make_groups(options.optimizer, zero::named_parameters(*source.model));
  const auto partition = plan.stage > 0 ? mesh.axes(&comm::AxisKind::partitions_state) : std::vector<std::string>();
  const zero::ReductionPlan reduction(*source.model, mesh, partition);
  const int data_ranks = mesh.group(&comm::AxisKind::splits_samples).size();
  auto in_memory = zero::weights_options(options, keys.master_weights, device);
  in_memory.pin = zero3.pin_memory;
  // The base model of adapters is stored elsewhere, and would take more memory than all that is trained.
  in_memory.frozen_masters = nn::adapted_layers(*source.model).empty();
  auto memory = plan_memory({plugin, zero3, source, options, reduction, data_ranks, mesh.world()}, keys, plan,
                            in_memory.working, log);
  auto weights = zero::make_weights(source, in_memory, std::move(memory.buckets), std::move(memory.residencies), log);
  std::unique_ptr<zero::ShardedModel> model;
  if (plan.stage < 3) {
    model = std::make_unique<zero::ShardedModel>(source.model, std::move(weights), options, sharded(keys, plan, mesh),
                                                 device);
  } else {
    auto of_chunks = std::make_unique<zero::GatheredModel>(
        source.model, std::move(weights), options, sharded(keys, plan, mesh), device,
        static_cast<std::size_t>(zero3.max_prefetch), std::move(memory.chunk_manager));
    if (const auto* manager = of_chunks->chunk_manager()) of_chunks->note(manager->describe());
    model = std::move(of_chunks);
  }
  describe(*model, keys, plan, reduction.whole().shards.size(), memory, log);
  const auto share = share_of(options.train, data_ranks);
  if (plan.hold_gradients)
    model->note(plugin.micro_batch(options.train.micro_batch, share) < share
                    ? "whole gradients are accumulated over the microbatches of a step, and reduced once"
                    : "gradients are reduced once anyway on this number of ranks: a step has one microbatch");
  zero::ShardedOptimizer::Norm norm{reduction.norm_axes(), keys.norm_type == "2" ? 2 : INFINITY};
  std::function<void()> before_step;
  if (plan.check_reduction)
    before_step = [&sharded_model = *model, ranks = reduction.whole().everyone,
                   key = fmt::format("plugin.{}.check_reduction", plugin.name())] {
      std::vector<std::string> names;
      std::vector<at::Tensor> values;
      for (const auto& slice : sharded_model.gradients()) {
        names.push_back(slice.placement.name);
        values.push_back(slice.value);
      }
      compare_gradients(ranks, key, names, values);
    };
  auto optimizer =
      std::make_unique<zero::ShardedOptimizer>(*model, options, std::move(norm), mesh, std::move(before_step));
  return {std::move(model), std::move(optimizer)};
}

}  // namespace trireme::plugins
