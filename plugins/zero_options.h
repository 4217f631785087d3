// Shared by all plugins over zero/: the keys that [train] also has, and the axes of partitioning and replicas.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/booster/plugin.h"
#include "core/config/table.h"

namespace trireme::plugins {

/// Keys that [train] also has; setting them in the plugin's section has the same effect.
struct TrainKeys {
  std::optional<std::string> precision;
  std::optional<double> max_norm, initial_scale, min_scale, max_scale, growth_factor, backoff_factor;
  std::optional<std::int64_t> growth_interval, hysteresis;
};

/// The sentence about them in a section's description.
inline constexpr const char* kTrainKeysText =
    " A key that [train] also has may be set in either section. The loss scale's keys belong in the section that sets "
    "precision = \"fp16\".";

/// Keys of other tools that no plugin has.
inline constexpr const char* kNoFp8Text = "fp8 is not supported; the narrowest precision is bf16";
template <class O>
void add_absent_fp8(Fields<O>& table) {
  table.instead("fp8_communication", kNoFp8Text).instead("use_fp8", kNoFp8Text);
}

/// The rows of TrainKeys.
template <class O>
void add_train_options(Fields<O>& table) {
  table.add("precision", &TrainKeys::precision,
            "Precision of weights, gradients and matrix products; bf16 and fp16 keep fp32 master weights of the slice "
            "that a rank owns.",
            {.choices = {"fp32", "tf32", "bf16", "fp16", "fp64"}});
  const auto as_in_train = [&table](const char* key, auto member) {
    const auto& row = *train_fields().find(key);
    auto rules = row.rules;
    rules.only = {};  // precision may be set in [train]
    table.add(key, member, row.text, rules);
  };
  as_in_train("max_norm", &TrainKeys::max_norm);
  as_in_train("initial_scale", &TrainKeys::initial_scale);
  as_in_train("min_scale", &TrainKeys::min_scale);
  as_in_train("max_scale", &TrainKeys::max_scale);
  as_in_train("growth_factor", &TrainKeys::growth_factor);
  as_in_train("backoff_factor", &TrainKeys::backoff_factor);
  as_in_train("growth_interval", &TrainKeys::growth_interval);
  as_in_train("hysteresis", &TrainKeys::hysteresis);
}

// Texts of keys that several plugins have.
inline constexpr const char* kMasterWeightsText =
    "bf16 and fp16: true updates fp32 copies of the weights; false updates the 16-bit weights directly, with 16-bit "
    "optimizer state, which is too narrow for Adam in fp16.";
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

/// Rejects holding gradients over microbatches when a step has only one on any number of ranks. @throws ConfigError
inline void check_holding(const config::Table* section, const char* key, bool holds, const TrainOptions& train) {
  if (holds && microbatches(train, 1) == 1)
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

/// @throws ConfigError
inline void check_copies(const config::Table* section, std::int64_t copies, int world_size) {
  if (world_size % copies != 0)
    config::fail(section, "extra_dp_size",
                 fmt::format("{} ranks cannot form {} groups of equal size; choose a divisor of {}", world_size, copies,
                             world_size));
  if (world_size > 1 && copies == world_size)
    config::fail(section, "extra_dp_size",
                 fmt::format("makes {} groups of one rank each, so nothing is partitioned; choose a smaller divisor, "
                             "or parallel.plugin = \"torch_ddp\"",
                             world_size));
}

/// Converts a number of units of 2^20 elements to elements, at least one.
inline std::int64_t mebi(double value) { return std::max<std::int64_t>(1, std::llround(value * 1024 * 1024)); }

/// Returns `given` with the values of the section. The precision must be the same in both, because other components
/// have read it too: a program that configures the plugin itself may have missed that. @throws ConfigError
inline BoostOptions with_section(const Plugin& plugin, const TrainKeys& options, BoostOptions given) {
  if (options.precision && *options.precision != given.train.precision)
    throw ConfigError(
        fmt::format("plugin.{}.precision: \"{}\", but train.precision is \"{}\"; set both to the same value",
                    plugin.name(), *options.precision, given.train.precision));
  given.train = with_own_options(plugin, given.train);
  return given;
}

inline std::vector<std::pair<std::string, int>> zero_axes(std::int64_t copies, int world_size) {
  const auto outer = static_cast<int>(copies);
  if (outer == 1) return {{"dp", world_size}};
  return {{"dp_outer", outer}, {"dp", world_size / outer}};
}

}  // namespace trireme::plugins
