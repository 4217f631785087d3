// HybridParallel: tensor parallelism inside, data parallelism with ZeRO 0, 1 or 2 outside. Each layer is cut by the
// model's policy (shardformer/apply.h); what a rank holds of it is then reduced, updated and shared out over the
// data-parallel ranks (zero/sharded_model.h).
//
//   ranks = dp x tp, tp varying fastest: the ranks of a tensor-parallel group are neighbours
#pragma once

#include "core/booster/plugin.h"
#include "plugins/sharded.h"

namespace trireme::plugins {

struct HybridParallelOptions : ShardedKeys {
  std::int64_t tp_size = 1;
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
  /// {"dp", what tp leaves}, {"tp", tp_size}
  std::vector<std::pair<std::string, int>> axes(int world_size) const override;
  BoostResult boost(ModelSource source, const BoostOptions& options, comm::Mesh& mesh, const Log& log) override;

 private:
  HybridParallelOptions options_;
};

}  // namespace trireme::plugins
