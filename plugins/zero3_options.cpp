#include "plugins/zero3_options.h"

#include <filesystem>

#include "core/base/files/files.h"
#include "core/booster/kernel_choice.h"
#include "core/comm/world.h"
#include "zero/buckets.h"

namespace trireme::plugins {

void check_zero3_keys(const CheckedSection& section, const Zero3Options& o, const FieldTable& fields,
                      const void* written, const char* size_key) {
  const auto changed = [&](const char* key) { return is_changed(fields, key, written); };
  const auto refuse = [&](bool wrong, const char* key, const std::string& why) {
    if (wrong) section.fail(key, why);
  };
  const bool is_auto = o.placement_policy == "auto";
  for (const char* key : {"shard_param_frac", "offload_optim_frac", "offload_param_frac", "strict_ddp_mode"})
    refuse(is_auto && changed(key), key, "is decided by placement_policy = \"auto\"; remove one of them");
  refuse(changed("pin_memory") && !is_auto && o.offload_optim_frac == 0, "pin_memory",
         "has no effect where nothing is offloaded; remove it, or set offload_optim_frac");
  refuse(o.offload_param_frac > o.offload_optim_frac, "offload_param_frac",
         fmt::format("is more than offload_optim_frac = {}: weights in host memory are updated there, so their "
                     "optimizer state must be there too; raise offload_optim_frac to {}",
                     o.offload_optim_frac, o.offload_param_frac));
  refuse(o.offload_param_frac > o.shard_param_frac, "offload_param_frac",
         fmt::format("is more than shard_param_frac = {}: weights that stay on every rank cannot be in host memory; "
                     "lower it to {}",
                     o.shard_param_frac, o.shard_param_frac));
  refuse(o.strict_ddp_mode && (changed("shard_param_frac") || o.offload_param_frac > 0), "strict_ddp_mode",
         "keeps all weights on every rank, which contradicts shard_param_frac or offload_param_frac; set only one of "
         "them");
  refuse(changed("max_prefetch") && (o.strict_ddp_mode || o.shard_param_frac == 0), "max_prefetch",
         "has no effect where all weights stay on every rank; remove it");
  for (const char* key : {"search_range_m", "min_chunk_size_m", "hidden_dim"})
    refuse(o.chunk_config && changed(key), key,
           fmt::format("has no effect when {} gives the size; remove one of them", size_key));
}

void check_zero3(const config::Table* section, const Zero3Options& o, const RunSettings& run,
                 std::int64_t microbatches) {
  check_holding(section, "enable_gradient_accumulation", o.enable_gradient_accumulation, microbatches);
  if (o.placement_policy == "auto" && runs_on_cpu(run) && run.memory_mb == 0)
    config::fail(section, "placement_policy",
                 "\"auto\" needs to know the device's memory; on CPU ranks, set run.memory_mb to what a rank's tensors "
                 "may take, or choose \"static\"");
  if (!o.memstats.empty() && lies_in(o.memstats, run.dir))
    config::fail(section, "memstats",
                 fmt::format("is inside run.dir ({}), which the next run renames; choose a file outside it", run.dir));
  const auto folder = std::filesystem::path(o.memstats).parent_path();
  if (!folder.empty() && !std::filesystem::is_directory(folder))
    config::fail(
        section, "memstats",
        fmt::format("cannot be written: there is no folder \"{}\"; create it, or name another", folder.string()));
  if (!o.force_outputs_fp32 && !is_half(run.train.precision))
    config::fail(section, "force_outputs_fp32",
                 fmt::format("has no effect in {}; remove it, or choose bf16 or fp16", run.train.precision));
}

std::vector<zero::Bucket> make_chunks(nn::Model& model, const Zero3Options& o, zero::BucketRules rules) {
  const zero::ChunkSearch search{mebi(o.min_chunk_size_m), o.search_range_m == 0 ? 0 : mebi(o.search_range_m),
                                 o.hidden_dim};
  rules.elements = o.chunk_config ? *o.chunk_config : zero::search_chunk_elements(model, search, rules);
  return zero::plan_chunks(model, rules);
}

std::vector<zero::Residency> residencies_of(const std::vector<zero::Bucket>& chunks, const Zero3Options& o,
                                            std::optional<int> deferred) {
  double total = 0, before = 0, trained = 0, trained_before = 0;
  for (const auto& chunk : chunks) {
    total += static_cast<double>(chunk.layout.payload());
    if (chunk.trained) trained += static_cast<double>(chunk.layout.payload());
  }
  const double stays = o.strict_ddp_mode ? 1 : 1 - o.shard_param_frac;
  std::vector<zero::Residency> residencies;
  for (const auto& chunk : chunks) {
    const auto size = static_cast<double>(chunk.layout.payload());
    // A chunk follows the rule for the element at its middle. Frozen chunks have no optimizer state to offload.
    const double middle = (before + size / 2) / total, trained_middle = (trained_before + size / 2) / trained;
    before += size;
    if (chunk.trained) trained_before += size;
    zero::Residency residency{.replicated = middle < stays};
    residency.offload_master = chunk.trained && 1 - trained_middle < o.offload_optim_frac;
    if (deferred && chunk.gradient_group >= *deferred) residency.offload_master &= o.offload_optim_frac == 1;
    residency.offload_part = !residency.replicated && residency.offload_master && 1 - middle < o.offload_param_frac;
    residencies.push_back(residency);
  }
  return residencies;
}

/// The settings on which the measurements of the first step depend, for memstats.
static zero::RunKeys figures_hold_for(const Measured& of, const std::vector<std::int64_t>& slices) {
  const auto& train = of.options.train;
  const auto& optimizer = of.options.optimizer;
  const auto share = share_of(train, of.data_ranks);
  zero::RunKeys run;
  for (const auto& [key, value] : of.source.options) run[key] = value;
  const auto say = [&run](const std::string& key, const auto& value) { run[key] = config::to_toml(value); };
  const auto say_field = [&say](const FieldTable& fields, const char* key, const void* options) {
    say(fmt::format("{}.{}", fields.section, key), fields.find(key)->get(options));
  };
  say("data-parallel ranks", std::int64_t{of.data_ranks});
  say("train.micro_batch", of.plugin.micro_batch(train.micro_batch, share));
  for (const char* key :
       {"precision", "global_batch", "recompute", "recompute_ratio", "recompute_layers_per_stage", "recompute_modules",
        "offload_activations", "enable_all_optimization", "enable_flash_attention", "attention_kernel",
        "enable_fused_normalization", "enable_jit_fused"})
    say_field(train_fields(), key, &train);
  say("optimizer.name", optimizer.method.name());
  for (const auto& field : optimizer.method.fields().fields)  // such as a momentum, which needs state
    say("optimizer." + field.key, field.get(optimizer.method.options()));
  say("optimizer.freeze", optimizer.freeze);
  for (const char* key : {"tp_size", "sp_size", "sequence_parallelism_mode", "enable_sequence_overlap", "extra_dp_size",
                          "enable_gradient_accumulation", "enable_async_reduce", "overlap_communication",
                          "master_weights", "force_outputs_fp32"})
    if (of.plugin.fields().find(key) != nullptr) say_field(of.plugin.fields(), key, of.plugin.options());
  say("slices of chunks, bytes", slices);
  return run;
}

std::unique_ptr<zero::ChunkManager> make_chunk_manager(const Measured& run, const std::vector<std::int64_t>& slices,
                                                       const Log& log) {
  const auto& o = run.keys;
  if (o.placement_policy != "auto") return nullptr;
  return std::make_unique<zero::ChunkManager>(run.reduction.whole().everyone, run.world,
                                              zero::ChunkManagerOptions{.section = "plugin." + run.plugin.name(),
                                                                        .warmup_ratio = o.warmup_non_model_data_ratio,
                                                                        .steady_ratio = o.steady_cuda_cap_ratio,
                                                                        .margin_ratio = o.gpu_margin_mem_ratio,
                                                                        .stats_path = o.memstats,
                                                                        .run = figures_hold_for(run, slices),
                                                                        .chunks = slices.size()},
                                              log);
}

}  // namespace trireme::plugins
