// What the plugins over zero::ShardedModel share (low_level_zero, hybrid_parallel): their common keys, the rules for
// them, and the construction of a model and its optimizer from a source.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/booster/plugin.h"
#include "plugins/zero_options.h"
#include "zero/sharded_model.h"

namespace trireme::plugins {

struct ShardedKeys : TrainKeys {
  std::string norm_type = "2";
  std::string communication_dtype = "same", grad_accum_dtype = "same";
  bool overlap_communication = true;
  bool overlap_allgather = false;
  bool cpu_offload = false;
  bool master_weights = true;
  bool broadcast_buffers = true;
  bool verbose = false;
};

/// The rows of ShardedKeys, followed by those of TrainKeys. `stage3`: the plugin also supports stage 3 of ZeRO.
template <class O>
void add_sharded_options(Fields<O>& table, bool stage3 = false) {
  using K = ShardedKeys;
  const FieldRules dtype{.choices = {"same", "fp32", "bf16", "fp16"}};
  table
      .add("norm_type", &K::norm_type,
           "The gradient norm that is reported and clipped: 2, or inf for the largest absolute value.",
           {.choices = {"2", "inf"}})
      .add("communication_dtype", &K::communication_dtype,
           "The dtype in which gradients are communicated; same: the dtype of the gradients.", dtype)
      .add("grad_accum_dtype", &K::grad_accum_dtype,
           "The dtype in which gradients are accumulated; same: the dtype of the gradients.", dtype)
      .add("overlap_communication", &K::overlap_communication,
           "true: reduce each full bucket during the backward pass; false: reduce all of them after it.")
      .add("overlap_allgather", &K::overlap_allgather,
           std::string("true: gather updated weights during the next forward pass, block by block; false: before the "
                       "step ends.") +
               (stage3 ? " With zero_stage = 3: gather the next block's weights while one is computed." : ""))
      .add("cpu_offload", &K::cpu_offload,
           "Keep optimizer state and master weights in host memory, and update them there.")
      .add("master_weights", &K::master_weights, kMasterWeightsText)
      .add("broadcast_buffers", &K::broadcast_buffers, kBroadcastBuffersText)
      .add("verbose", &K::verbose, "Print each bucket: its parameters, and how much of it a rank owns.");
  add_train_options(table);
}

/// @throws ConfigError
void check_sharded_options(const config::Table* section, const ShardedKeys& keys, const std::string& precision);

struct ShardedPlan {
  int stage = 1;  ///< ZeRO stage: 0, 1, 2, 3
  std::optional<double>
      bucket_mi;  ///< size of a bucket or chunk, in units of 2^20 elements; unset: 12, or less for a small model
  bool cast_inputs = true;
  bool hold_gradients = false;         ///< stages 2 and 3: hold gradients over the microbatches of a step
  bool counts_loss = true;             ///< false: another rank has the same loss, and gradients are summed over both
  std::vector<std::string> norm_axes;  ///< mesh axes along which ranks may hold different slices
  /// The gradient group of a parameter, see zero/grad_sync.h; empty: one backward pass completes all gradients.
  std::function<int(const std::string& name)> gradient_group_of{};
  std::optional<int> deferred_group{};
};

struct Sharded {
  std::unique_ptr<zero::ShardedModel> model;
  std::unique_ptr<BoostedOptimizer> optimizer;
};

/// Makes the model and the optimizer according to `keys` and `plan`, partitioned over groups.shards. Collective.
Sharded boost_sharded(const ModelSource& source, const BoostOptions& options, const ShardedKeys& keys,
                      const ShardedPlan& plan, const zero::GradGroups& groups, comm::Mesh& mesh, const Log& log);

}  // namespace trireme::plugins
