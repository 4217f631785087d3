// HybridParallel: tensor and sequence parallelism inside, pipeline parallelism around them, data parallelism with ZeRO
// 0 to 3 outside. Each rank runs some of the model's blocks (pipelined.h), whose layers are sharded by the model's
// policy (shardformer/apply.h). What a rank holds of them is then reduced, updated and partitioned over the
// data-parallel ranks (zero/sharded_model.h; with stage 3 zero/gemini/gathered_model.h).
//
//   ranks = dp x pp x sp x tp, with tp varying fastest: the ranks of a tensor-parallel group are neighbours. sp counts
//   only for the modes of sequence parallelism with a separate axis
#pragma once

#include "core/booster/plugin.h"
#include "plugins/hybrid_parallel/options.h"
#include "plugins/hybrid_parallel/stage_plan.h"

namespace trireme::plugins {

class HybridParallel : public Plugin {
 public:
  std::string name() const override { return "hybrid_parallel"; }
  std::string summary() const override {
    return "Tensor, sequence and pipeline parallelism, combined with data parallelism and ZeRO stages 0 to 3.";
  }
  const FieldTable& fields() const override { return hybrid_parallel_fields(); }
  const void* options() const override { return &options_; }
  void configure(const config::Table* section) override;
  void check(const RunSettings& run) const override;
  void check_model(const ModelSource& source, const RunSettings& run) const override;
  /// {"dp", the remaining ranks}, {"pp", pp_size}, {"sp", sp_size} if it has a separate axis, {"tp", tp_size}; or pp
  /// before dp.
  std::vector<std::pair<std::string, int>> axes(int world_size) const override;
  std::vector<std::string> loss_axes() const override { return {"dp", "pp"}; }
  bool reads_inputs(const comm::Mesh& mesh) const override { return mesh.coordinate("pp") == 0; }
  std::int64_t micro_batch(std::optional<std::int64_t> wanted, std::int64_t share) const override;
  bool broadcasts_buffers() const override { return options_.broadcast_buffers; }
  BoostResult boost(ModelSource source, const BoostOptions& options, comm::Mesh& mesh, const Log& log) override;

 private:
  zero::GradGroups grad_groups(comm::Mesh& mesh) const;
  std::vector<double> block_costs(const ModelSource& source, const BoostOptions& options, comm::Mesh& mesh) const;
  /// The options of the partition into stages, without block costs.
  [[nodiscard]] StageChoice stage_choice() const;
  /// The stages of all ranks; one stage without a pipeline.
  [[nodiscard]] std::vector<pipeline::Stage> stages_of(nn::Model& model) const;
  HybridParallelOptions options_;
};

}  // namespace trireme::plugins
