// Gemini: ZeRO stage 3. Weights, gradients and optimizer state are partitioned over the ranks in chunks, some of them
// in host memory if the options say so. Implementation: zero/gemini/gathered_model.h.
#include "core/booster/plugin.h"
#include "core/booster/plugin_entry.h"
#include "plugins/sharded.h"

namespace trireme::plugins {
namespace {

const Fields<GeminiOptions>& gemini_fields();

Fields<GeminiOptions> make_fields() {
  using O = GeminiOptions;
  Fields<O> table("plugin.gemini", std::string("ZeRO stage 3.") + kTrainKeysText);
  add_zero3_options(table);
  table
      .add("enable_async_reduce", &O::enable_async_reduce,
           "true: reduce each full chunk during the backward pass; false: reduce all of them after it.")
      .add("extra_dp_size", &O::extra_dp_size, kExtraDpSizeText, {.min = 1});
  add_zero_keys(table, "chunk");
  table.instead("chunk_config_dict", kNoChunkConfigDictText)
      .instead("chunk_init_device", "each chunk is allocated on the device on which it stays; remove it")
      .instead("tp_size", "set parallel.plugin = \"hybrid_parallel\" with tp_size and zero_stage = 3")
      .instead("enable_sequence_parallelism", "set parallel.plugin = \"hybrid_parallel\" with zero_stage = 3")
      .rule([](const O& o, const CheckedSection& section) { check_zero3_keys(section, o, gemini_fields(), &o); });
  return table;
}

const Fields<GeminiOptions>& gemini_fields() {
  static const auto table = make_fields();
  return table;
}

}  // namespace

class Gemini : public PluginOf<GeminiOptions> {
 public:
  Gemini() : PluginOf(gemini_fields()) {}
  std::string summary() const override {
    return "ZeRO stage 3: weights are partitioned over the ranks as well, and gathered block by block.";
  }
  void check(const RunSettings& run) const override {
    check_masters(run.section, options_.master_weights, run.train.precision);
    check_replicas(run.section, options_.extra_dp_size, run.world_size);
    check_zero3(run.section, options_, run, microbatches(run.train, /*ranks=*/1));
  }
  /// {"dp_outer", extra_dp_size}: replicas; {"dp", the remaining ranks}: state is partitioned over this axis.
  comm::Axes axes(int world_size) const override { return zero_axes(options_.extra_dp_size, world_size); }
  BoostResult boost(ModelSource source, const BoostOptions& given, comm::Mesh& mesh, const Log& log) override {
    ShardedPluginOptions keys;
    static_cast<ZeroOptions&>(keys) = options_;
    keys.overlap_communication = options_.enable_async_reduce;
    const ShardedPlan plan{.stage = 3, .zero3 = &options_, .hold_gradients = options_.enable_gradient_accumulation};
    auto result = boost_sharded(*this, source, with_section(*this, options_, given), keys, plan, mesh, log);
    return {.model = std::move(result.model),
            .optimizer = std::move(result.optimizer),
            .broadcasts_buffers = options_.broadcast_buffers};
  }
};

}  // namespace trireme::plugins

TRIREME_PLUGIN(trireme::plugins::Gemini)
