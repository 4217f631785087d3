// What the keys of [plugin.hybrid_parallel] say together, and the rules for them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/pipeline/schedules.h"
#include "core/shardformer/groups.h"
#include "plugins/sharded.h"

namespace trireme::plugins {

/// The mode of sequence parallelism.
shardformer::Sequence mode_of(const HybridParallelOptions& options);
/// The size of the sequence-parallel axis: 1 without sequence parallelism, or if it reuses the tensor-parallel ranks.
std::int64_t sp_of(const HybridParallelOptions& options);
/// The number of ranks that process the same share of the data.
inline std::int64_t inner_of(const HybridParallelOptions& o) { return o.pp_size * sp_of(o) * o.tp_size; }
/// Whether the stages depend only on the options and the number of blocks.
inline bool knows_stages(const HybridParallelOptions& o) {
  return o.pp_size == 1 || !o.num_layers_per_stage.empty() || o.pp_partition == "uniform";
}
inline bool overlaps_sequence(const HybridParallelOptions& o) { return o.enable_sequence_overlap.value_or(true); }
/// The keys of stage 3, with those that other stages have too: zero_bucket_size_in_m, cpu_offload, overlap_allgather.
Zero3Options zero3_of(const HybridParallelOptions& options);

const Fields<HybridParallelOptions>& hybrid_parallel_fields();

/// `share`: a rank's samples of a global batch. @throws ConfigError
void check_pipeline(const config::Table* section, const HybridParallelOptions& options, const pipeline::Plan& plan,
                    const TrainOptions& train, std::int64_t share);
/// Why a rank's samples of a global batch cannot be split into `parts` microbatches; "" when they can.
std::string validate_microbatches(std::int64_t share, std::int64_t parts);

}  // namespace trireme::plugins
