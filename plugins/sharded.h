// What the plugins over zero::ShardedModel share (low_level_zero, gemini, hybrid_parallel): common keys, the rules for
// them, and the construction of a model and its optimizer from a source.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "core/booster/plugin.h"
#include "plugins/zero3_options.h"
#include "plugins/zero_options.h"
#include "zero/sharded_model.h"

namespace trireme::plugins {

/// The rows of ShardedPluginOptions, followed by those of ZeroOptions. `stage3`: the plugin also supports stage 3 of
/// ZeRO.
template <class O>
void add_sharded_options(Fields<O>& table, bool stage3 = false) {
  using K = ShardedPluginOptions;
  const FieldRules dtype{.choices = {"same", "fp32", "bf16", "fp16"}};
  table
      .add("communication_dtype", &K::communication_dtype,
           "The dtype in which gradients are communicated; same: the dtype of the gradients.", dtype)
      .add("grad_accum_dtype", &K::grad_accum_dtype,
           "The dtype in which gradients are accumulated; same: the dtype of the gradients.", dtype)
      .add("overlap_communication", &K::overlap_communication,
           "true: reduce each full bucket during the backward pass; false: reduce all of them after it.")
      .add("overlap_allgather", &K::overlap_allgather,
           std::string("true: gather updated weights during the next forward pass, block by block; false: before the "
                       "step ends.") +
               (stage3 ? " With zero_stage = 3: the same as max_prefetch = 1." : ""))
      .add("cpu_offload", &K::cpu_offload,
           std::string("Keep optimizer state and master weights in host memory, and update them there.") +
               (stage3 ? " With zero_stage = 3: the same as offload_optim_frac = 1." : ""));
  add_zero_keys(table, "bucket");
}

/// @throws ConfigError
void check_sharded_options(const config::Table* section, const ShardedPluginOptions& keys,
                           const std::string& precision);

struct ShardedPlan {
  int stage = 1;                        ///< ZeRO stage: 0, 1, 2, 3
  std::optional<double> bucket_mi{};    ///< size of a bucket, in units of 2^20 elements; unset: 12, or less for a small
                                        ///< model
  const Zero3Options* zero3 = nullptr;  ///< of stage 3
  bool cast_inputs = true;
  bool hold_gradients = false;   ///< stages 2 and 3: hold gradients over the microbatches of a step
  bool check_reduction = false;  ///< stage 0: compare the ranks' gradients in each step
  /// The gradient group of a parameter, see zero/grad_sync.h; empty: one backward pass completes all gradients.
  std::function<int(const std::string& name)> gradient_group_of{};
  std::optional<int> deferred_group{};
};

struct Sharded {
  std::unique_ptr<zero::ShardedModel> model;
  std::unique_ptr<BoostedOptimizer> optimizer;
};

/// Makes the plugin's model and optimizer according to `keys` and `plan`. Collective.
Sharded boost_sharded(const Plugin& plugin, const ModelSource& source, const BoostOptions& options,
                      const ShardedPluginOptions& keys, const ShardedPlan& plan, comm::Mesh& mesh, const Log& log);

}  // namespace trireme::plugins
