// What all plugins over zero/ share: the keys that [train] has too, and the axes of partition and copies.
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

/// Keys that [train] has too: what the section says counts for both.
struct TrainKeys {
  std::optional<std::string> precision;
  std::optional<double> max_norm, initial_scale, min_scale, max_scale, growth_factor, backoff_factor;
  std::optional<std::int64_t> growth_interval, hysteresis;
};

/// The rows of TrainKeys.
template <class O>
void add_train_options(Fields<O>& table) {
  table
      .add("precision", &TrainKeys::precision,
           "Precision of weights, gradients and matrix products; bf16 and fp16 keep fp32 master weights of the slice "
           "that a rank owns.",
           {.choices = {"fp32", "tf32", "bf16", "fp16", "fp64"}})
      .add("max_norm", &TrainKeys::max_norm, "Clip the gradient to this norm; 0 never clips.", {.min = 0})
      .add("initial_scale", &TrainKeys::initial_scale, "fp16: the initial loss scale.", {.above = 0})
      .add("min_scale", &TrainKeys::min_scale, "fp16: the smallest loss scale.", {.above = 0})
      .add("max_scale", &TrainKeys::max_scale, "fp16: the largest loss scale.", {.above = 0})
      .add("growth_factor", &TrainKeys::growth_factor, "fp16: the factor by which the loss scale grows.", {.above = 1})
      .add("backoff_factor", &TrainKeys::backoff_factor,
           "fp16: the factor by which the loss scale shrinks after an overflow.", {.above = 0, .below = 1})
      .add("growth_interval", &TrainKeys::growth_interval,
           "fp16: consecutive steps without overflow after which the loss scale grows.", {.min = 1})
      .add("hysteresis", &TrainKeys::hysteresis, "fp16: overflows after which the loss scale shrinks.", {.min = 1});
}

inline bool is_half(const std::string& precision) { return precision == "bf16" || precision == "fp16"; }

/// A rank's samples of a global batch, at most.
inline std::int64_t share_of(const config::TrainOptions& train, int ranks) {
  return (train.global_batch + ranks - 1) / ranks;
}
/// Of a step.
inline std::int64_t microbatches(const config::TrainOptions& train, int ranks) {
  const auto share = share_of(train, ranks), micro = std::min(train.micro_batch.value_or(share), share);
  return (share + micro - 1) / micro;
}

/// Holding gradients over microbatches means nothing where a step has one on any number of ranks. @throws ConfigError
inline void check_holding(const config::Table* section, const char* key, bool holds,
                          const config::TrainOptions& train) {
  if (holds && microbatches(train, 1) == 1)
    config::fail(section, key,
                 "has no effect: a step has one microbatch, and reduces once anyway; remove it, or set "
                 "train.micro_batch to less than a rank's share of global_batch");
}

/// Whether an option differs from its default. Not whether it was written: a resolved file holds every key.
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
                 fmt::format("makes groups of one of the {} ranks, so that nothing is partitioned; choose a smaller "
                             "divisor, or parallel.plugin = \"torch_ddp\"",
                             world_size));
}

/// A number of units of 2^20 elements as elements, at least one.
inline std::int64_t mebi(double value) { return std::max<std::int64_t>(1, std::llround(value * 1024 * 1024)); }

/// `given` with what the section says. The precision, which others have read too, must be the same in both: a program
/// that configures the plugin itself may have missed it. @throws ConfigError
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
