// LowLevelZero: ZeRO stages 1 and 2, that is, data parallelism with partitioned optimizer state (stage 1), and
// partitioned gradients too (stage 2). Implementation: zero/sharded_model.h.
#pragma once

#include "core/booster/plugin.h"
#include "plugins/sharded.h"

namespace trireme::plugins {

struct LowLevelZeroOptions : ShardedPluginOptions {
  std::int64_t stage = 1;
  std::optional<double> reduce_bucket_size_in_m;
  bool cast_inputs = true;
  bool no_sync = false;
  std::int64_t extra_dp_size = 1;
};

const Fields<LowLevelZeroOptions>& low_level_zero_fields();

class LowLevelZero : public PluginBase {
 public:
  std::string name() const override { return "low_level_zero"; }
  std::string summary() const override {
    return "ZeRO stages 1 and 2: optimizer state, and in stage 2 gradients, are partitioned over the ranks.";
  }
  const FieldTable& fields() const override { return low_level_zero_fields(); }
  const void* options() const override { return &options_; }
  void configure(const config::Table* section) override;
  void check(const RunSettings& run) const override;
  /// {"dp_outer", extra_dp_size}: replicas; {"dp", the remaining ranks}: state is partitioned over this axis.
  comm::Axes axes(int world_size) const override;
  BoostResult boost(ModelSource source, const BoostOptions& options, comm::Mesh& mesh, const Log& log) override;

 private:
  LowLevelZeroOptions options_;
};

}  // namespace trireme::plugins
