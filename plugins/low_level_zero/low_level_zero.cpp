// LowLevelZero: ZeRO stages 1 and 2, that is, data parallelism with partitioned optimizer state (stage 1), and
// partitioned gradients too (stage 2). Implementation: zero/sharded_model.h.
#include "core/booster/plugin.h"
#include "core/booster/plugin_entry.h"
#include "plugins/sharded.h"

namespace trireme::plugins {

static const Fields<LowLevelZeroOptions>& low_level_zero_fields() {
  using O = LowLevelZeroOptions;
  static const auto table = [] {
    auto rows = Fields<O>("plugin.low_level_zero", std::string("ZeRO stages 1 and 2.") + kTrainKeysText)
                    .add("stage", &O::stage,
                         "ZeRO stage: 1 partitions optimizer state, 2 gradients as well. For stage 3, which partitions "
                         "weights as well, use the plugin gemini, or parallel.zero = 3 without parallel.plugin.",
                         {.min = 1})
                    .add("reduce_bucket_size_in_m", &O::reduce_bucket_size_in_m,
                         "Size of a gradient bucket in units of 2^20 elements. Unset: 12, or an eighth of the model's "
                         "parameters if that is smaller.",
                         {.max = 1e6, .above = 0})
                    .add("cast_inputs", &O::cast_inputs,
                         "true: convert floating-point inputs to the precision of the run; false: the model converts "
                         "them itself.")
                    .add("no_sync", &O::no_sync,
                         "Stage 2 with several microbatches per step. true: accumulate whole gradients and reduce "
                         "once, for less communication and more memory; false: reduce after each microbatch.")
                    .add("extra_dp_size", &O::extra_dp_size, kExtraDpSizeText, {.min = 1});
    add_sharded_options(rows);
    rows.rule([](const O& o, const CheckedSection& section) {
      if (o.stage > 2)
        section.fail("stage",
                     fmt::format("stage {} is not supported: this plugin has stages 1 and 2; to partition the weights "
                                 "as well, set parallel.plugin = \"gemini\", or parallel.zero = 3 in place of "
                                 "parallel.plugin",
                                 o.stage));
    });
    return rows;
  }();
  return table;
}

class LowLevelZero : public PluginOf<LowLevelZeroOptions> {
 public:
  LowLevelZero() : PluginOf(low_level_zero_fields()) {}
  std::string summary() const override {
    return "ZeRO stages 1 and 2: optimizer state, and in stage 2 gradients, are partitioned over the ranks.";
  }
  void check(const RunSettings& run) const override;
  /// {"dp_outer", extra_dp_size}: replicas; {"dp", the remaining ranks}: state is partitioned over this axis.
  comm::Axes axes(int world_size) const override { return zero_axes(options_.extra_dp_size, world_size); }
  BoostResult boost(ModelSource source, const BoostOptions& given, comm::Mesh& mesh, const Log& log) override {
    const ShardedPlan plan{.stage = static_cast<int>(options_.stage),
                           .bucket_mi = options_.reduce_bucket_size_in_m,
                           .cast_inputs = options_.cast_inputs,
                           .hold_gradients = options_.no_sync};
    auto result = boost_sharded(*this, source, with_section(*this, options_, given), options_, plan, mesh, log);
    return {.model = std::move(result.model),
            .optimizer = std::move(result.optimizer),
            .broadcasts_buffers = options_.broadcast_buffers};
  }
};

void LowLevelZero::check(const RunSettings& run) const {
  const auto* section = run.section;
  const auto& precision = run.train.precision;
  check_sharded_options(section, options_, precision);
  check_replicas(section, options_.extra_dp_size, run.world_size);
  const auto refuse = [&](bool wrong, const char* key, const std::string& why) {
    if (wrong) config::fail(section, key, why);
  };
  refuse(options_.no_sync && options_.stage == 1, "no_sync",
         "has no effect in stage 1, which accumulates whole gradients anyway and reduces once per step; remove it, or "
         "set stage = 2");
  check_holding(section, "no_sync", options_.no_sync, microbatches(run.train, 1));
  refuse(!options_.cast_inputs && !is_half(precision), "cast_inputs",
         fmt::format("has no effect in {}, the dtype in which inputs arrive; remove it", precision));
}

}  // namespace trireme::plugins

TRIREME_PLUGIN(trireme::plugins::LowLevelZero)
