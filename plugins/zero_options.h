// Shared by all plugins over zero/: the keys that [train] also has, and the axes of partitioning and replicas.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>

#include "core/base/error.h"
#include "core/booster/plugin.h"
#include "core/config/table.h"
#include "plugins/common_options.h"
#include "plugins/options.h"

namespace trireme::plugins {

/// The sentence about them in a section's description.
inline constexpr const char* kTrainKeysText =
    " A key that [train] also has may be set in either section. The loss scale's keys belong in the section that sets "
    "precision = \"fp16\".";

/// The rows of ZeroOptions, followed by those of SharedTrainOptions and the refusals that all plugins share. `unit`:
/// "bucket".
template <class O>
void add_zero_keys(Fields<O>& table, const std::string& unit) {
  using K = ZeroOptions;
  table
      .add("norm_type", &K::norm_type,
           "The gradient norm that is reported and clipped: 2, or inf for the largest absolute value.",
           {.choices = {"2", "inf"}})
      .add("master_weights", &K::master_weights,
           "bf16 and fp16: true updates fp32 copies of the weights; false updates the 16-bit weights directly, with "
           "16-bit optimizer state, which is too narrow for Adam in fp16.")
      .add("broadcast_buffers", &K::broadcast_buffers, kBroadcastBuffersText)
      .add("verbose", &K::verbose, "Print each " + unit + ": its parameters, and how much of it a rank owns.");
  table.add("precision", &SharedTrainOptions::precision,
            "Precision of weights, gradients and matrix products; bf16 and fp16 keep fp32 master weights of the slice "
            "that a rank owns.",
            {.choices = {"fp32", "tf32", "bf16", "fp16", "fp64"}});
  const auto as_in_train = [&table](const char* key, auto member) {
    const auto& row = *train_fields().find(key);
    auto rules = row.rules;
    rules.only = {};  // precision may be set in [train]
    table.add(key, member, row.text, rules);
  };
  as_in_train("max_norm", &SharedTrainOptions::max_norm);
  as_in_train("initial_scale", &SharedTrainOptions::initial_scale);
  as_in_train("min_scale", &SharedTrainOptions::min_scale);
  as_in_train("max_scale", &SharedTrainOptions::max_scale);
  as_in_train("growth_factor", &SharedTrainOptions::growth_factor);
  as_in_train("backoff_factor", &SharedTrainOptions::backoff_factor);
  as_in_train("growth_interval", &SharedTrainOptions::growth_interval);
  as_in_train("hysteresis", &SharedTrainOptions::hysteresis);
  as_in_train("recompute_ratio", &SharedTrainOptions::recompute_ratio);
  as_in_train("recompute_layers_per_stage", &SharedTrainOptions::recompute_layers_per_stage);
  as_in_train("enable_all_optimization", &SharedTrainOptions::enable_all_optimization);
  as_in_train("enable_flash_attention", &SharedTrainOptions::enable_flash_attention);
  as_in_train("attention_kernel", &SharedTrainOptions::attention_kernel);
  as_in_train("enable_fused_normalization", &SharedTrainOptions::enable_fused_normalization);
  as_in_train("enable_jit_fused", &SharedTrainOptions::enable_jit_fused);
  add_absent_fp8(table);
}

// Texts of keys that several plugins have.
inline constexpr const char* kExtraDpSizeText =
    "Number of replicas of the partitioned state: the ranks form this many groups, each of which holds all of it. More "
    "memory, less communication over slow links.";

inline bool is_half(const std::string& precision) { return precision == "bf16" || precision == "fp16"; }

/// A rank's samples of a global batch, at most.
inline std::int64_t share_of(const TrainOptions& train, int ranks) { return (train.global_batch + ranks - 1) / ranks; }
/// The number of microbatches of a step.
inline std::int64_t microbatches(const TrainOptions& train, int ranks) {
  const auto share = share_of(train, ranks), micro = std::min(train.micro_batch.value_or(share), share);
  return (share + micro - 1) / micro;
}

/// Rejects holding gradients over microbatches when a step has only one, even of all samples on one rank.
/// @throws ConfigError
inline void check_holding(const config::Table* section, const char* key, bool holds, std::int64_t microbatches) {
  if (holds && microbatches == 1)
    config::fail(section, key,
                 "has no effect: a step has one microbatch, so it reduces once anyway; remove it, or set "
                 "train.micro_batch to less than a rank's share of global_batch");
}

/// Whether an option differs from its default. It does not matter whether it was set, because a resolved file holds
/// every key.
inline bool is_changed(const FieldTable& fields, const char* key, const void* options) {
  const auto* field = fields.find(key);
  return field->get(options) != field->default_value;
}

/// @throws ConfigError
inline void check_masters(const config::Table* section, bool master_weights, const std::string& precision) {
  if (!master_weights && !is_half(precision))
    config::fail(
        section, "master_weights",
        fmt::format("has no effect in {}, which has no master weights; remove it, or choose bf16 or fp16", precision));
}

/// `ranks`: data-parallel ranks; `sharers`: ranks of each of them among which state is partitioned too; `without`: what
/// to choose for no partition. @throws ConfigError
inline void check_replicas(const config::Table* section, std::int64_t replicas, std::int64_t ranks,
                           std::int64_t sharers = 1, const char* without = "parallel.plugin = \"torch_ddp\"") {
  if (ranks % replicas != 0)
    config::fail(section, "extra_dp_size",
                 fmt::format("{} data-parallel ranks cannot form {} groups of equal size; choose a divisor of {}",
                             ranks, replicas, ranks));
  if (replicas > 1 && replicas == ranks * sharers)
    config::fail(section, "extra_dp_size",
                 fmt::format("makes {} groups of one rank each, so nothing is partitioned; choose a smaller divisor, "
                             "or {}",
                             replicas, without));
}

/// Converts a number of units of 2^20 elements to elements, at least one.
inline std::int64_t mebi(double value) { return std::max<std::int64_t>(1, std::llround(value * 1024 * 1024)); }

/// Returns `given` with the values of the section. The precision must be the same in both, because other components
/// have read it too: a program that configures the plugin itself may have missed that. @throws ConfigError
inline BoostOptions with_section(const Plugin& plugin, const SharedTrainOptions& options, BoostOptions given) {
  if (options.precision && *options.precision != given.train.precision)
    throw ConfigError(
        fmt::format("plugin.{}.precision: \"{}\", but train.precision is \"{}\"; set both to the same value",
                    plugin.name(), *options.precision, given.train.precision));
  given.train = with_own_options(plugin, given.train);
  return given;
}

/// The axes of data-parallel ranks.
inline comm::Axes zero_axes(std::int64_t replicas, std::int64_t ranks) {
  comm::Axes axes{{"dp", static_cast<int>(ranks / replicas)}};
  if (replicas > 1) axes.insert(axes.begin(), {"dp_outer", static_cast<int>(replicas)});
  return axes;
}

}  // namespace trireme::plugins
