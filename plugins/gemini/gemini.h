// Gemini: ZeRO stage 3. Weights, gradients and optimizer state are partitioned over the ranks in chunks, some of them
// in host memory if the options say so. Implementation: zero/gemini/gathered_model.h.
#pragma once

#include "core/booster/plugin.h"
#include "plugins/sharded.h"

namespace trireme::plugins {

struct GeminiOptions : ZeroOptions, Zero3Options {
  bool enable_async_reduce = true;
  std::int64_t extra_dp_size = 1;
};

const Fields<GeminiOptions>& gemini_fields();

class Gemini : public PluginBase {
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
  comm::Axes axes(int world_size) const override;
  BoostResult boost(ModelSource source, const BoostOptions& options, comm::Mesh& mesh, const Log& log) override;

 private:
  GeminiOptions options_;
};

}  // namespace trireme::plugins
