// HybridParallel: tensor and sequence parallelism inside, data parallelism with ZeRO 0, 1 or 2 outside. Each layer is
// cut by the model's policy (shardformer/apply.h); what a rank holds of it is then reduced, updated and shared out over
// the data-parallel ranks (zero/sharded_model.h).
//
//   ranks = dp x sp x tp, tp varying fastest: the ranks of a tensor-parallel group are neighbours. sp counts only for
//   the modes of sequence parallelism that have ranks of their own
#pragma once

#include "core/booster/plugin.h"
#include "plugins/sharded.h"
#include "shardformer/sequence.h"

namespace trireme::plugins {

struct HybridParallelOptions : ShardedKeys {
  std::int64_t tp_size = 1;
  std::optional<std::int64_t> sp_size;
  std::optional<std::string> sequence_parallelism_mode;
  std::optional<bool> enable_sequence_parallelism;
  std::int64_t zero_stage = 0;
  std::optional<double> zero_bucket_size_in_m;
};

const Fields<HybridParallelOptions>& hybrid_parallel_fields();

class HybridParallel : public Plugin {
 public:
  std::string name() const override { return "hybrid_parallel"; }
  std::string summary() const override {
    return "Tensor parallelism, with data parallelism and ZeRO 0, 1 or 2 around it.";
  }
  const FieldTable& fields() const override { return hybrid_parallel_fields(); }
  const void* options() const override { return &options_; }
  void configure(const config::Table* section) override;
  void check(const config::RunConfig& config, int world_size) const override;
  void check_model(const ModelSource& source, const config::RunConfig& config) const override;
  /// {"dp", what the others leave}, {"sp", sp_size} where it has ranks of its own, {"tp", tp_size}
  std::vector<std::pair<std::string, int>> axes(int world_size) const override;
  BoostResult boost(ModelSource source, const BoostOptions& options, comm::Mesh& mesh, const Log& log) override;

 private:
  void check_sequence(const config::Table* section) const;
  zero::GradGroups grad_groups(comm::Mesh& mesh) const;
  std::int64_t sp() const;  ///< ranks of sequence parallelism's own

  HybridParallelOptions options_;
  shardformer::Sequence mode_ = shardformer::Sequence::none;
};

}  // namespace trireme::plugins
