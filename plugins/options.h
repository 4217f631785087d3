// The options of the built-in plugins, for programs: load_plugin(plugins::TorchDdpOptions{.bucket_cap_mb = 10}). A
// field is the key of [plugin.NAME] with its name, and has that key's meaning and rules (docs/config.md). Fields of a
// base class are set one by one:
//
//   plugins::LowLevelZeroOptions zero;
//   zero.stage = 2;
//   zero.norm_type = "inf";
//   Booster booster(world, load_plugin(zero), ...);
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace trireme::plugins {

/// Keys that [train] also has; setting them in the plugin's section has the same effect.
struct SharedTrainOptions {
  std::optional<std::string> precision, attention_kernel;
  std::optional<double> max_norm, initial_scale, min_scale, max_scale, growth_factor, backoff_factor, recompute_ratio;
  std::optional<std::int64_t> growth_interval, hysteresis;
  std::optional<std::vector<std::int64_t>> recompute_layers_per_stage;
  std::optional<bool> enable_all_optimization, enable_flash_attention, enable_fused_normalization, enable_jit_fused;
};

/// Keys of every plugin that partitions optimizer state.
struct ZeroOptions : SharedTrainOptions {
  std::string norm_type = "2";
  bool master_weights = true;
  bool broadcast_buffers = true;
  bool verbose = false;
};

/// Keys of stages 0 to 2.
struct ShardedPluginOptions : ZeroOptions {
  std::string communication_dtype = "same", grad_accum_dtype = "same";
  bool overlap_communication = true;
  bool overlap_allgather = false;
  bool cpu_offload = false;
};

/// Keys of stage 3 of ZeRO.
struct Zero3Options {
  std::optional<std::int64_t> chunk_config;
  double search_range_m = 32, min_chunk_size_m = 32;
  std::int64_t hidden_dim = 1024;
  double shard_param_frac = 1, offload_optim_frac = 0, offload_param_frac = 0;
  std::string placement_policy = "static";
  double warmup_non_model_data_ratio = 0.8, steady_cuda_cap_ratio = 0.9, gpu_margin_mem_ratio = 0;
  std::string memstats;
  bool pin_memory = true;
  std::int64_t max_prefetch = 0;
  bool force_outputs_fp32 = true;
  bool strict_ddp_mode = false;
  bool enable_gradient_accumulation = false;
};

struct TorchDdpOptions {
  static constexpr const char* kPlugin = "torch_ddp";
  bool broadcast_buffers = true;
  std::int64_t bucket_cap_mb = 25;
  bool find_unused_parameters = false;
  bool check_reduction = false;
  bool gradient_as_bucket_view = true;
  bool static_graph = false;
};

struct DataParallelOptions {
  static constexpr const char* kPlugin = "data_parallel";
  std::optional<std::int64_t> replicas{};
};

struct LowLevelZeroOptions : ShardedPluginOptions {
  static constexpr const char* kPlugin = "low_level_zero";
  std::int64_t stage = 1;
  std::optional<double> reduce_bucket_size_in_m{};
  bool cast_inputs = true;
  bool no_sync = false;
  std::int64_t extra_dp_size = 1;
};

struct GeminiOptions : ZeroOptions, Zero3Options {
  static constexpr const char* kPlugin = "gemini";
  bool enable_async_reduce = true;
  std::int64_t extra_dp_size = 1;
};

struct HybridParallelOptions : ShardedPluginOptions, Zero3Options {
  static constexpr const char* kPlugin = "hybrid_parallel";
  std::int64_t tp_size = 1;
  bool parallel_output = true;
  std::optional<std::int64_t> sp_size{};
  std::optional<std::string> sequence_parallelism_mode{};
  std::optional<bool> enable_sequence_parallelism{};
  std::int64_t pp_size = 1;
  std::string pp_style = "1f1b";
  std::optional<std::int64_t> num_model_chunks{}, num_microbatches{}, microbatch_size{};
  std::vector<std::int64_t> num_layers_per_stage{};
  std::string pp_partition = "flops";
  bool dp_outside = true;
  std::int64_t zero_stage = 0;
  std::optional<double> zero_bucket_size_in_m{};
  std::optional<bool> enable_sequence_overlap{};
  bool check_reduction = false;
  std::int64_t extra_dp_size = 1;
};

}  // namespace trireme::plugins
