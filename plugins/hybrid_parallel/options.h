// The keys of [plugin.hybrid_parallel], and the rules that need only the keys.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/pipeline/schedules.h"
#include "plugins/sharded.h"
#include "shardformer/groups.h"

namespace trireme::plugins {

struct HybridParallelOptions : ShardedPluginOptions, Zero3Options {
  std::int64_t tp_size = 1;
  bool parallel_output = true;
  std::optional<std::int64_t> sp_size;
  std::optional<std::string> sequence_parallelism_mode;
  std::optional<bool> enable_sequence_parallelism;
  std::int64_t pp_size = 1;
  std::string pp_style = "1f1b";
  std::optional<std::int64_t> num_model_chunks, num_microbatches, microbatch_size;
  std::vector<std::int64_t> num_layers_per_stage;
  std::string pp_partition = "flops";
  bool dp_outside = true;
  std::int64_t zero_stage = 0;
  std::optional<double> zero_bucket_size_in_m;
  std::optional<bool> enable_sequence_overlap;
  bool check_reduction = false;
  std::int64_t extra_dp_size = 1;

  [[nodiscard]] shardformer::Sequence mode() const;
  /// The size of the sequence-parallel axis: 1 without sequence parallelism, or if it reuses the tensor-parallel ranks.
  [[nodiscard]] std::int64_t sp() const;
  /// The number of ranks that process the same share of the data.
  [[nodiscard]] std::int64_t inner() const { return pp_size * sp() * tp_size; }
  /// Whether the stages depend only on the options and the number of blocks.
  [[nodiscard]] bool knows_stages() const {
    return pp_size == 1 || !num_layers_per_stage.empty() || pp_partition == "uniform";
  }
  [[nodiscard]] bool overlap() const { return enable_sequence_overlap.value_or(true); }
  /// The keys of stage 3, with those that other stages have too: zero_bucket_size_in_m, cpu_offload, overlap_allgather.
  [[nodiscard]] Zero3Options zero3() const;
};

const Fields<HybridParallelOptions>& hybrid_parallel_fields();

/// @throws ConfigError
void check_sequence(const config::Table* section, const HybridParallelOptions& options);
/// The rules of stage 3; `microbatches`: their number in a step of one data-parallel rank, which is the largest
/// possible. @throws ConfigError
void check_stage3(const config::Table* section, const HybridParallelOptions& options, const RunSettings& run,
                  std::int64_t microbatches);
/// `share`: a rank's samples of a global batch. @throws ConfigError
void check_pipeline(const config::Table* section, const HybridParallelOptions& options, const pipeline::Plan& plan,
                    const TrainOptions& train, std::int64_t share);
/// Why a rank's samples of a global batch cannot be split into `parts` microbatches; "" when they can.
std::string validate_microbatches(std::int64_t share, std::int64_t parts);

}  // namespace trireme::plugins
