// Gemini: ZeRO stage 3. Weights, gradients and optimizer state are partitioned over the ranks in chunks, some of them
// in host memory if the options say so. Implementation: zero/gemini/gathered_model.h.
#pragma once

#include "core/booster/plugin.h"
#include "plugins/sharded.h"

namespace trireme::plugins {

const Fields<GeminiOptions>& gemini_fields();

class Gemini : public PluginOf<GeminiOptions> {
 public:
  Gemini() : PluginOf(gemini_fields()) {}
  std::string summary() const override {
    return "ZeRO stage 3: weights are partitioned over the ranks as well, and gathered block by block.";
  }
  void check(const RunSettings& run) const override;
  /// {"dp_outer", extra_dp_size}: replicas; {"dp", the remaining ranks}: state is partitioned over this axis.
  comm::Axes axes(int world_size) const override;
  BoostResult boost(ModelSource source, const BoostOptions& options, comm::Mesh& mesh, const Log& log) override;
};

}  // namespace trireme::plugins
