#include "plugins/gemini/gemini.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "core/base/text.h"
#include "core/booster/plugin_entry.h"
#include "core/checkpoint/files.h"
#include "core/comm/world.h"
#include "plugins/zero_options.h"
#include "zero/gemini/chunks.h"
#include "zero/gemini/gathered_model.h"
#include "zero/sharded_optimizer.h"

namespace trireme::plugins {
namespace {

Fields<GeminiOptions> make_fields() {
  using O = GeminiOptions;
  const OnlyWith automatic{"placement_policy", {"auto"}};
  auto table =
      Fields<O>("plugin.gemini", std::string("ZeRO stage 3.") + kTrainKeysText)
          .add("chunk_config", &O::chunk_config,
               "Size of a chunk of weights in elements; a chunk never spans two blocks. Unset: a good size is searched "
               "for.",
               {.min = 1})
          .add("min_chunk_size_m", &O::min_chunk_size_m,
               "The smallest chunk size of the search, in units of 2^20 elements.", {.max = 1e6, .above = 0})
          .add("search_range_m", &O::search_range_m,
               "The range of the search above min_chunk_size_m, in units of 2^20 elements.", {.min = 0, .max = 1e6})
          .add("hidden_dim", &O::hidden_dim,
               "The step size of the search in elements; the model's hidden size is a good value.", {.min = 64})
          .add(
              "placement_policy", &O::placement_policy,
              "static: the three *_frac keys determine what is kept on the device. auto: memory is measured in the "
              "first step, and the device is filled accordingly; for a CPU rank, run.memory_mb is the device's memory.",
              {.choices = {"static", "auto"}})
          .add("warmup_non_model_data_ratio", &O::warmup_non_model_data_ratio,
               "The fraction of the device's memory that is reserved for activations and other data in the first step.",
               {.min = 0, .max = 1, .only = automatic})
          .add("steady_cuda_cap_ratio", &O::steady_cuda_cap_ratio,
               "The fraction of the device's memory that may be used after the first step.",
               {.max = 1, .above = 0, .only = automatic})
          .add("gpu_margin_mem_ratio", &O::gpu_margin_mem_ratio,
               "The fraction of the memory that is free at the peak of a step which master weights and optimizer state "
               "may use; the rest of them is updated in host memory.",
               {.min = 0, .max = 1, .only = automatic})
          .add("memstats", &O::memstats,
               "A file for the memory statistics of the first step. If it exists, it is read, and no step is needed "
               "for measuring; otherwise it is written. Empty: no file.",
               {.only = automatic})
          .add("pin_memory", &O::pin_memory,
               "With a GPU, keep offloaded data in pinned host memory: faster copies, but less memory for other "
               "programs.")
          .add("shard_param_frac", &O::shard_param_frac,
               "The fraction of the weights that is partitioned; the others are replicated on every rank: less "
               "communication, more memory.",
               {.min = 0, .max = 1})
          .add("offload_optim_frac", &O::offload_optim_frac,
               "The fraction of master weights and optimizer state that is kept, and updated, in host memory.",
               {.min = 0, .max = 1})
          .add("offload_param_frac", &O::offload_param_frac,
               "The fraction of the weights whose slices are kept in host memory; at most offload_optim_frac and "
               "shard_param_frac.",
               {.min = 0, .max = 1})
          .add("max_prefetch", &O::max_prefetch, "Number of blocks whose weights are gathered ahead.",
               {.min = 0, .max = 1024})
          .add("master_weights", &O::master_weights, kMasterWeightsText)
          .add("force_outputs_fp32", &O::force_outputs_fp32,
               "bf16 and fp16: true passes the model's outputs to the criterion in fp32, false in 16 bits.")
          .add("strict_ddp_mode", &O::strict_ddp_mode, "Every rank keeps all weights, as with shard_param_frac = 0.")
          .add("enable_gradient_accumulation", &O::enable_gradient_accumulation,
               "With several microbatches per step. true: accumulate whole gradients and reduce once, for less "
               "communication and more memory; false: reduce after each microbatch.")
          .add("enable_async_reduce", &O::enable_async_reduce,
               "true: reduce each full chunk during the backward pass; false: reduce all of them after it.")
          .add("extra_dp_size", &O::extra_dp_size, kExtraDpSizeText, {.min = 1})
          .add("broadcast_buffers", &O::broadcast_buffers, kBroadcastBuffersText)
          .add("verbose", &O::verbose, "Print each chunk: its parameters, and how much of it a rank owns.");
  add_train_options(table);
  add_absent_fp8(table);
  const auto* kernels = "kernels are chosen by parallel.plugin = \"hybrid_parallel\", which has zero_stage = 3 too";
  table.instead("chunk_config_dict", "give one chunk size with chunk_config, or leave it out for a search")
      .instead("chunk_init_device", "chunks are made where they stay, one after the other; nothing is to be chosen")
      .instead("norm_type", "this plugin clips by the 2-norm; low_level_zero and hybrid_parallel have norm_type")
      .instead("tp_size", "set parallel.plugin = \"hybrid_parallel\" with tp_size and zero_stage = 3")
      .instead("enable_sequence_parallelism", "set parallel.plugin = \"hybrid_parallel\" with zero_stage = 3")
      .instead("enable_all_optimization", kernels)
      .instead("enable_fused_normalization", kernels)
      .instead("enable_flash_attention", kernels)
      .instead("enable_jit_fused", kernels);
  return table;
}

}  // namespace

const Fields<GeminiOptions>& gemini_fields() {
  static const auto table = make_fields();
  return table;
}

std::vector<zero::Residency> residencies_of(const std::vector<zero::Bucket>& chunks, const GeminiOptions& o) {
  double total = 0, before = 0, trained = 0, trained_before = 0;
  for (const auto& chunk : chunks) {
    total += static_cast<double>(chunk.layout.payload());
    if (chunk.trained) trained += static_cast<double>(chunk.layout.payload());
  }
  const double stays = o.strict_ddp_mode ? 1 : 1 - o.shard_param_frac;
  std::vector<zero::Residency> residencies;
  for (const auto& chunk : chunks) {
    const auto size = static_cast<double>(chunk.layout.payload());
    // A chunk is placed where its middle belongs. Frozen chunks have no optimizer state to offload.
    const double middle = (before + size / 2) / total, trained_middle = (trained_before + size / 2) / trained;
    before += size;
    if (chunk.trained) trained_before += size;
    zero::Residency residency{.replicated = middle < stays};
    residency.offload_master = chunk.trained && 1 - trained_middle < o.offload_optim_frac;
    residency.offload_part = !residency.replicated && residency.offload_master && 1 - middle < o.offload_param_frac;
    residencies.push_back(residency);
  }
  return residencies;
}

void Gemini::configure(const config::Table* section) {
  options_ = config::read(section, gemini_fields());
  const auto& o = options_;
  const auto changed = [&o](const char* key) { return is_changed(gemini_fields(), key, &o); };
  const auto refuse = [&](bool wrong, const char* key, const std::string& why) {
    if (wrong) config::fail(section, key, why);
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
  refuse(o.max_prefetch > 0 && (o.strict_ddp_mode || o.shard_param_frac == 0), "max_prefetch",
         "has no effect where all weights stay on every rank; remove it");
  for (const char* key : {"search_range_m", "min_chunk_size_m", "hidden_dim"})
    refuse(o.chunk_config && changed(key), key, "has no effect when chunk_config gives the size; remove one of them");
}

void Gemini::check(const RunSettings& run) const {
  const auto* section = run.section;
  check_masters(section, options_.master_weights, run.train.precision);
  check_copies(section, options_.extra_dp_size, run.world_size);
  check_holding(section, "enable_gradient_accumulation", options_.enable_gradient_accumulation, run.train);
  const bool on_cpu = run.device == "cpu" || (run.device == "auto" && comm::cuda_device_count() == 0);
  if (options_.placement_policy == "auto" && on_cpu && run.memory_mb == 0)
    config::fail(section, "placement_policy",
                 "\"auto\" needs to know the device's memory; on CPU ranks, set run.memory_mb to what a rank's tensors "
                 "may take, or choose \"static\"");
  if (!options_.memstats.empty() && checkpoint::lies_in(options_.memstats, run.dir))
    config::fail(section, "memstats",
                 fmt::format("is inside run.dir ({}), which the next run renames; choose a file outside it", run.dir));
  const auto folder = std::filesystem::path(options_.memstats).parent_path();
  if (!folder.empty() && !std::filesystem::is_directory(folder))
    config::fail(
        section, "memstats",
        fmt::format("cannot be written: there is no folder \"{}\"; create it, or name another", folder.string()));
  if (!options_.force_outputs_fp32 && !is_half(run.train.precision))
    config::fail(section, "force_outputs_fp32",
                 fmt::format("has no effect in {}; remove it, or choose bf16 or fp16", run.train.precision));
}

std::vector<std::pair<std::string, int>> Gemini::axes(int world_size) const {
  return zero_axes(options_.extra_dp_size, world_size);
}

static std::vector<zero::Bucket> make_chunks(nn::Model& model, const GeminiOptions& o, int parts) {
  const zero::ChunkSearch search{mebi(o.min_chunk_size_m), o.search_range_m == 0 ? 0 : mebi(o.search_range_m),
                                 o.hidden_dim};
  return zero::plan_chunks(model, o.chunk_config ? *o.chunk_config : zero::search_chunk_elements(model, search, parts),
                           parts);
}

/// The settings on which the measurements of the first step depend, for memstats.
static zero::RunKeys figures_hold_for(const GeminiOptions& o, const ModelSource& source, const BoostOptions& options,
                                      const std::vector<std::int64_t>& slices, const zero::GradGroups& groups) {
  const auto& train = options.train;
  const auto& optimizer = options.optimizer;
  const auto share = share_of(train, groups.everyone.size());
  zero::RunKeys run;
  for (const auto& [key, value] : source.options) run[key] = value;
  const auto say = [&run](const std::string& key, const auto& value) { run[key] = config::to_toml(value); };
  say("ranks", std::int64_t{groups.everyone.size()});
  say("train.precision", train.precision);
  say("train.global_batch", train.global_batch);
  say("train.micro_batch", std::min(train.micro_batch.value_or(share), share));
  say("train.recompute", train.recompute);
  say("optimizer.name", optimizer.method.name());
  for (const auto& field : optimizer.method.fields().fields)  // such as a momentum, which needs state
    say("optimizer." + field.key, field.get(optimizer.method.options()));
  say("optimizer.freeze", optimizer.freeze);
  say("plugin.gemini.extra_dp_size", o.extra_dp_size);
  say("plugin.gemini.enable_gradient_accumulation", o.enable_gradient_accumulation);
  say("plugin.gemini.enable_async_reduce", o.enable_async_reduce);
  say("plugin.gemini.master_weights", o.master_weights);
  say("plugin.gemini.force_outputs_fp32", o.force_outputs_fp32);
  say("slices of chunks, bytes", slices);
  return run;
}

/// Null with placement_policy = "static".
static std::unique_ptr<zero::ChunkManager> make_chunk_manager(const GeminiOptions& o, zero::RunKeys run,
                                                              const std::vector<std::int64_t>& slices,
                                                              const zero::GradGroups& groups, const comm::World& world,
                                                              const Log& log) {
  if (o.placement_policy != "auto") return nullptr;
  return std::make_unique<zero::ChunkManager>(groups.everyone, world,
                                              zero::ChunkManagerOptions{.warmup_ratio = o.warmup_non_model_data_ratio,
                                                                        .steady_ratio = o.steady_cuda_cap_ratio,
                                                                        .margin_ratio = o.gpu_margin_mem_ratio,
                                                                        .stats_path = o.memstats,
                                                                        .run = std::move(run),
                                                                        .chunks = slices.size()},
                                              log);
}

BoostResult Gemini::boost(ModelSource source, const BoostOptions& given, comm::Mesh& mesh, const Log& log) {
  const auto options = with_section(*this, options_, given);
  const zero::GradGroups groups{mesh.group("dp"), mesh.group("dp_outer"), mesh.group(data_axes())};
  const int parts = groups.shards.size();
  const auto device = mesh.world().device();
  zero::freeze(*source.model, options.optimizer);
  auto chunks = make_chunks(*source.model, options_, parts);
  auto flat = zero::weights_options(options, options_.master_weights, device);
  flat.pin = options_.pin_memory;
  std::vector<std::int64_t> slices;
  for (const auto& chunk : chunks)
    slices.push_back(chunk.layout.part_size() * static_cast<std::int64_t>(c10::elementSize(flat.working)));
  auto chunk_manager = make_chunk_manager(options_, figures_hold_for(options_, source, options, slices, groups), slices,
                                          groups, mesh.world(), log);
  auto residencies = chunk_manager ? chunk_manager->careful(slices) : residencies_of(chunks, options_);
  auto weights = zero::make_weights(source, flat, std::move(chunks), std::move(residencies), groups, log);
  const zero::ShardedOptions sharded{.partition_gradients = true,
                                     .overlap_reduce = options_.enable_async_reduce,
                                     .hold_gradients = options_.enable_gradient_accumulation,
                                     .outputs_fp32 = options_.force_outputs_fp32};
  auto model =
      std::make_unique<zero::GatheredModel>(source.model, std::move(weights), options, sharded, groups, device,
                                            static_cast<std::size_t>(options_.max_prefetch), std::move(chunk_manager));
  describe(*model, parts, microbatches(options.train, groups.everyone.size()) > 1, log);
  auto optimizer =
      std::make_unique<zero::ShardedOptimizer>(*model, options, zero::ShardedOptimizer::Norm{{"dp"}}, mesh);
  return {std::move(model), std::move(optimizer)};
}

/// Adds the notes for the header of a run.
void Gemini::describe(zero::GatheredModel& model, int parts, bool accumulates, const Log& log) const {
  model.note(fmt::format("each rank owns 1/{} of {} parameters, in {} chunks", parts,
                         text::thousands(nn::parameter_count(model.module())), model.flat().buckets().size()));
  if (options_.enable_gradient_accumulation)
    model.note(accumulates
                   ? "whole gradients are accumulated over the microbatches of a step, and reduced once"
                   : "enable_gradient_accumulation has no effect on this number of ranks: a step has one microbatch");
  if (model.chunk_manager() != nullptr) model.note(model.chunk_manager()->describe());
  if (options_.verbose)
    for (const auto& line : model.flat().describe("chunk")) log.note("{}", line);
}

}  // namespace trireme::plugins

TRIREME_PLUGIN(trireme::plugins::Gemini)
