// HybridParallel: tensor and sequence parallelism as the innermost axes, then pipeline parallelism, then data
// parallelism with ZeRO 0 to 3. Each rank runs some of the model's blocks (pipelined.h), whose layers are sharded by
// the model's policy (shardformer/apply.h). What a rank holds of them is then reduced, updated and partitioned over the
// data-parallel ranks (zero/sharded_model.h; with stage 3 zero/gemini/gathered_model.h).
//
//   ranks = dp x pp x sp x tp, with tp varying fastest: the ranks of a tensor-parallel group are neighbours. The
//   factor sp is 1 for the modes of sequence parallelism that reuse these ranks.
#pragma once

#include "core/booster/plugin.h"
#include "plugins/hybrid_parallel/options.h"
#include "plugins/hybrid_parallel/stage_plan.h"

namespace trireme::plugins {

class HybridParallel : public PluginOf<HybridParallelOptions> {
 public:
  HybridParallel() : PluginOf(hybrid_parallel_fields()) {}
  std::string summary() const override {
    return "Tensor, sequence and pipeline parallelism, combined with data parallelism and ZeRO stages 0 to 3.";
  }
  void set_kinds(const PluginKinds& kinds) override;
  void check(const RunSettings& run) const override;
  void check_model(const ModelSource& source, const RunSettings& run) const override;
  /// {"dp_outer", extra_dp_size} if above 1, {"dp", the remaining ranks}, {"pp", pp_size}, {"sp", sp_size} if it has a
  /// separate axis, {"tp", tp_size}; with dp_outside = false, pp is before dp.
  comm::Axes axes(int world_size) const override;
  std::int64_t micro_batch(std::optional<std::int64_t> wanted, std::int64_t share) const override;
  BoostResult boost(ModelSource source, const BoostOptions& options, comm::Mesh& mesh, const Log& log) override;

 private:
  std::vector<double> block_costs(const ModelSource& source, const BoostOptions& options, comm::Mesh& mesh) const;
  /// The schedule that the options name.
  [[nodiscard]] pipeline::Plan plan() const;
  /// Makes the schedule for each number of microbatches that a step can have: the last one of an epoch may have fewer,
  /// and an evaluation has one for each rank. Others than the full step's only up to 128: the executor proves what it
  /// runs. @throws ConfigError when the schedule is wrong for one of them
  void prove_schedule(const config::Table* section, const TrainOptions& train, std::int64_t share) const;
  /// The options of the partition into stages, without block costs.
  [[nodiscard]] StageChoice stage_choice() const;
  /// The number of microbatches in a step of one data-parallel rank, which is the largest possible.
  [[nodiscard]] std::int64_t microbatches_of_all(const TrainOptions& train) const;
  /// The stages of all ranks; one stage without a pipeline.
  [[nodiscard]] std::vector<pipeline::Stage> stages_of(nn::Model& model) const;
  PluginKinds kinds_{};
};

}  // namespace trireme::plugins
