// HybridParallel: tensor parallelism inside, a pipeline around it, data parallelism with ZeRO 0, 1 or 2 outside. Each
// rank runs some of the model's blocks (pipelined.h), whose layers are cut by the model's policy (shardformer/apply.h);
// what a rank holds of them is then reduced, updated and shared out over the data-parallel ranks
// (zero/sharded_model.h).
//
//   ranks = dp x pp x tp, tp varying fastest: the ranks of a tensor-parallel group are neighbours
#pragma once

#include "core/booster/plugin.h"
#include "plugins/hybrid_parallel/stage_plan.h"
#include "plugins/sharded.h"

namespace trireme::plugins {

struct HybridParallelOptions : ShardedKeys {
  std::int64_t tp_size = 1;
  std::int64_t pp_size = 1;
  std::string pp_style = "1f1b";
  std::optional<std::int64_t> num_model_chunks, num_microbatches, microbatch_size;
  std::vector<std::int64_t> num_layers_per_stage;
  std::string pp_partition = "uniform";
  bool dp_outside = true;
  std::int64_t zero_stage = 0;
  std::optional<double> zero_bucket_size_in_m;
};

const Fields<HybridParallelOptions>& hybrid_parallel_fields();

class HybridParallel : public Plugin {
 public:
  std::string name() const override { return "hybrid_parallel"; }
  std::string summary() const override {
    return "Tensor and pipeline parallelism, with data parallelism and ZeRO 0, 1 or 2 around them.";
  }
  const FieldTable& fields() const override { return hybrid_parallel_fields(); }
  const void* options() const override { return &options_; }
  void configure(const config::Table* section) override;
  void check(const config::RunConfig& config, int world_size) const override;
  void check_model(const ModelSource& source, const config::RunConfig& config) const override;
  /// {"dp", what the others leave}, {"pp", pp_size}, {"tp", tp_size}; or pp before dp
  std::vector<std::pair<std::string, int>> axes(int world_size) const override;
  std::vector<std::string> loss_axes() const override { return {"dp", "pp"}; }
  bool reads_inputs(const comm::Mesh& mesh) const override { return mesh.coordinate("pp") == 0; }
  std::int64_t micro_batch(std::optional<std::int64_t> wanted, std::int64_t share) const override;
  BoostResult boost(ModelSource source, const BoostOptions& options, comm::Mesh& mesh, const Log& log) override;

 private:
  void check_pipeline(const config::Table* section, const config::RunConfig& config) const;
  [[nodiscard]] StageChoice stage_choice() const;
  /// As schedules take it: 0 where none is given.
  [[nodiscard]] int chunks() const { return static_cast<int>(options_.num_model_chunks.value_or(0)); }
  HybridParallelOptions options_;
};

}  // namespace trireme::plugins
