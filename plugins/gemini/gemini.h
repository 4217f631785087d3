// Gemini: ZeRO stage 3. Weights, gradients and optimizer state are partitioned over the ranks in chunks, some of them
// in host memory if the options say so. Implementation: zero/gemini/gathered_model.h.
#pragma once

#include "core/booster/plugin.h"
#include "plugins/zero_options.h"
#include "zero/flat_weights.h"

namespace trireme::zero {
class GatheredModel;
}

namespace trireme::plugins {

struct GeminiOptions : TrainKeys {
  std::optional<std::int64_t> chunk_config;
  double search_range_m = 32, min_chunk_size_m = 32;
  std::int64_t hidden_dim = 1024;
  double shard_param_frac = 1, offload_optim_frac = 0, offload_param_frac = 0;
  std::string placement_policy = "static";
  double warmup_non_model_data_ratio = 0.8, steady_cuda_cap_ratio = 0.9, gpu_margin_mem_ratio = 0;
  std::string memstats;
  bool pin_memory = true;
  std::int64_t max_prefetch = 0;
  bool master_weights = true;
  bool force_outputs_fp32 = true;
  bool strict_ddp_mode = false;
  bool enable_gradient_accumulation = false;
  bool enable_async_reduce = true;
  std::int64_t extra_dp_size = 1;
  bool broadcast_buffers = true;
  bool verbose = false;
};

const Fields<GeminiOptions>& gemini_fields();

/// The residency of each chunk under "static", from the options' fractions of all elements: the first chunks stay on
/// the device, the last ones are offloaded.
std::vector<zero::Residency> residencies_of(const std::vector<zero::Bucket>& chunks, const GeminiOptions& options);

class Gemini : public Plugin {
 public:
  std::string name() const override { return "gemini"; }
  std::string summary() const override {
    return "ZeRO stage 3: weights are partitioned over the ranks as well, and gathered block by block.";
  }
  const FieldTable& fields() const override { return gemini_fields(); }
  const void* options() const override { return &options_; }
  void configure(const config::Table* section) override;
  void check(const RunSettings& run) const override;
  /// {"dp_outer", extra_dp_size}: replicas; {"dp", the remaining ranks}: state is partitioned over this axis.
  std::vector<std::pair<std::string, int>> axes(int world_size) const override;
  std::vector<std::string> data_axes() const override { return {"dp_outer", "dp"}; }
  bool broadcasts_buffers() const override { return options_.broadcast_buffers; }
  BoostResult boost(ModelSource source, const BoostOptions& options, comm::Mesh& mesh, const Log& log) override;

 private:
  void describe(zero::GatheredModel& model, int parts, bool accumulates, const Log& log) const;
  GeminiOptions options_;
};

}  // namespace trireme::plugins
