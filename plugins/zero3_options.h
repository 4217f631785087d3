// What the plugins over zero::GatheredModel share (gemini, and hybrid_parallel with zero_stage = 3): the keys of stage
// 3 of ZeRO, the rules for them, and what they decide: the chunks, where each is kept, and the manager of their memory.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "plugins/zero_options.h"
#include "zero/flat_weights.h"
#include "zero/gemini/chunk_manager.h"

namespace trireme::plugins {

/// The rows of Zero3Options. `stage3`: the condition under which a plugin has stage 3; unset: always.
template <class O>
void add_zero3_options(Fields<O>& table, const std::optional<OnlyWith>& stage3 = {}) {
  using K = Zero3Options;
  const OnlyWith automatic{"placement_policy", {"auto"}};
  const FieldRules share{.min = 0, .max = 1, .only = stage3};
  table
      .add(
          "chunk_config", &K::chunk_config,
          "Size of a chunk of weights in elements; a chunk never spans two blocks. Unset: a good size is searched for.",
          {.min = 1, .only = stage3})
      .add("min_chunk_size_m", &K::min_chunk_size_m,
           "The smallest chunk size of the search, in units of 2^20 elements.",
           {.max = 1e6, .above = 0, .only = stage3})
      .add("search_range_m", &K::search_range_m,
           "The range of the search above min_chunk_size_m, in units of 2^20 elements.",
           {.min = 0, .max = 1e6, .only = stage3})
      .add("hidden_dim", &K::hidden_dim,
           "The step size of the search in elements; the model's hidden size is a good value.",
           {.min = 64, .only = stage3})
      .add("placement_policy", &K::placement_policy,
           "static: the three *_frac keys determine what is kept on the device. auto: memory is measured in the first "
           "step, and the device is filled accordingly; for a CPU rank, run.memory_mb is the device's memory.",
           {.choices = {"static", "auto"}, .only = stage3})
      .add("warmup_non_model_data_ratio", &K::warmup_non_model_data_ratio,
           "The fraction of the device's memory that is reserved for activations and other data in the first step.",
           {.min = 0, .max = 1, .only = automatic})
      .add("steady_cuda_cap_ratio", &K::steady_cuda_cap_ratio,
           "The fraction of the device's memory that may be used after the first step.",
           {.max = 1, .above = 0, .only = automatic})
      .add("gpu_margin_mem_ratio", &K::gpu_margin_mem_ratio,
           "The fraction of the memory that is free at the peak of a step which master weights and optimizer state may "
           "use; the rest of them is updated in host memory.",
           {.min = 0, .max = 1, .only = automatic})
      .add("memstats", &K::memstats,
           "A file for the memory statistics of the first step. If it exists, it is read, and no step is needed for "
           "measuring; otherwise it is written. Empty: no file.",
           {.only = automatic, .path = true})
      .add("pin_memory", &K::pin_memory,
           "With a GPU, keep offloaded data in pinned host memory: faster copies, but less memory for other programs.",
           {.only = stage3})
      .add("shard_param_frac", &K::shard_param_frac,
           "The fraction of the weights that is partitioned; the others are replicated on every rank: less "
           "communication, more memory.",
           share)
      .add("offload_optim_frac", &K::offload_optim_frac,
           "The fraction of master weights and optimizer state that is kept, and updated, in host memory.", share)
      .add("offload_param_frac", &K::offload_param_frac,
           "The fraction of the weights whose slices are kept in host memory; at most offload_optim_frac and "
           "shard_param_frac.",
           share)
      .add("max_prefetch", &K::max_prefetch, "Number of blocks whose weights are gathered ahead.",
           {.min = 0, .max = 1024, .only = stage3})
      .add("force_outputs_fp32", &K::force_outputs_fp32,
           "bf16 and fp16: true passes the model's outputs to the criterion in fp32, false in 16 bits.",
           {.only = stage3})
      .add("strict_ddp_mode", &K::strict_ddp_mode, "Every rank keeps all weights, as with shard_param_frac = 0.",
           {.only = stage3})
      .add("enable_gradient_accumulation", &K::enable_gradient_accumulation,
           "With several microbatches per step. true: accumulate whole gradients and reduce once, for less "
           "communication and more memory; false: reduce after each microbatch.",
           {.only = stage3});
}

/// Colossal-AI's chunk_config_dict maps each data-parallel size to a chunk size and to whether chunks stay gathered.
inline constexpr const char* kNoChunkConfigDictText =
    "all parameters are partitioned over the same ranks, so one size is enough: give it with chunk_config, in "
    "elements; "
    "shard_param_frac is for keep_gathered";

/// Checks the rules that need only the keys. `written`: the table and the options of the section, by which a key counts
/// as changed; `size_key`: the key that gave chunk_config. @throws ConfigError
void check_zero3_keys(const CheckedSection& section, const Zero3Options& keys, const FieldTable& fields,
                      const void* written, const char* size_key = "chunk_config");
/// Checks the rules that need other settings of the run; `microbatches`: their number in a step
/// of one data-parallel rank, which is the largest possible.
/// @throws ConfigError
void check_zero3(const config::Table* section, const Zero3Options& keys, const RunSettings& run,
                 std::int64_t microbatches);

/// The chunks by the keys' size, which takes the place of rules.elements.
std::vector<zero::Bucket> make_chunks(nn::Model& model, const Zero3Options& keys, zero::BucketRules rules);

/// The residency of each chunk under "static", from the options' fractions of all elements: the first chunks stay on
/// the device, the last ones are offloaded. Chunks from gradient group `deferred` on, which several pipeline stages
/// hold, are offloaded only if all are, so that the stages agree.
std::vector<zero::Residency> residencies_of(const std::vector<zero::Bucket>& chunks, const Zero3Options& keys,
                                            std::optional<int> deferred = {});

/// The run for which a chunk manager measures.
struct Measured {
  const Plugin& plugin;
  const Zero3Options& keys;
  const ModelSource& source;
  const BoostOptions& options;
  const zero::ReductionPlan& reduction;
  int data_ranks;  ///< that read other samples
  const comm::World& world;
};
/// Null with placement_policy = "static". `slices`: bytes of the slice of each chunk. Collective.
std::unique_ptr<zero::ChunkManager> make_chunk_manager(const Measured& run, const std::vector<std::int64_t>& slices,
                                                       const Log& log);

}  // namespace trireme::plugins
