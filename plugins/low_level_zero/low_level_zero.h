// LowLevelZero: ZeRO stages 1 and 2, that is, data parallelism with partitioned optimizer state (stage 1), and
// partitioned gradients too (stage 2). Implementation: zero/sharded_model.h.
#pragma once

#include "core/booster/plugin.h"
#include "plugins/sharded.h"

namespace trireme::plugins {

const Fields<LowLevelZeroOptions>& low_level_zero_fields();

class LowLevelZero : public PluginOf<LowLevelZeroOptions> {
 public:
  LowLevelZero() : PluginOf(low_level_zero_fields()) {}
  std::string summary() const override {
    return "ZeRO stages 1 and 2: optimizer state, and in stage 2 gradients, are partitioned over the ranks.";
  }
  void check(const RunSettings& run) const override;
  /// {"dp_outer", extra_dp_size}: replicas; {"dp", the remaining ranks}: state is partitioned over this axis.
  comm::Axes axes(int world_size) const override;
  BoostResult boost(ModelSource source, const BoostOptions& options, comm::Mesh& mesh, const Log& log) override;
};

}  // namespace trireme::plugins
