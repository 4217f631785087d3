#include "plugins/low_level_zero/low_level_zero.h"

#include <cmath>

#include "core/base/error.h"
#include "core/booster/plugin_entry.h"
#include "zero/sharded_optimizer.h"

namespace trireme::plugins {
namespace {

std::optional<at::ScalarType> dtype_of(const std::string& name) {
  if (name == "fp32") return at::kFloat;
  if (name == "bf16") return at::kBFloat16;
  if (name == "fp16") return at::kHalf;
  return std::nullopt;
}

bool is_half(const std::string& precision) { return precision == "bf16" || precision == "fp16"; }

zero::ShardedOptions sharded(const LowLevelZeroOptions& o) {
  zero::ShardedOptions out;
  out.partition_gradients = o.stage == 2;
  out.overlap_reduce = o.overlap_communication;
  out.overlap_gather = o.overlap_allgather;
  out.offload = o.cpu_offload;
  out.masters = o.master_weights;
  out.cast_inputs = o.cast_inputs;
  out.hold_gradients = o.no_sync;
  if (o.reduce_bucket_size_in_m)
    out.bucket_elements = std::max<std::int64_t>(1, std::llround(*o.reduce_bucket_size_in_m * 1024 * 1024));
  out.communication_dtype = dtype_of(o.communication_dtype);
  out.accumulation_dtype = dtype_of(o.grad_accum_dtype);
  return out;
}

}  // namespace

const Fields<LowLevelZeroOptions>& low_level_zero_fields() {
  using O = LowLevelZeroOptions;
  const FieldRules dtype{.choices = {"same", "fp32", "bf16", "fp16"}};
  static const auto table =
      Fields<O>("plugin.low_level_zero", "ZeRO stages 1 and 2. Keys that [train] has too may be written in either.")
          .add("stage", &O::stage,
               "1 shares out the optimizer's state; 2 the gradients too. (Stage 3, weights as well, is the plugin "
               "gemini.)",
               {.min = 1})
          .add("norm_type", &O::norm_type,
               "The gradient norm that is told and clipped: 2, or inf for the largest value.",
               {.choices = {"2", "inf"}})
          .add("reduce_bucket_size_in_m", &O::reduce_bucket_size_in_m,
               "Size of a gradient bucket, in units of 2^20 elements. Unset: 12, or an eighth of a model that is "
               "smaller than 96.",
               {.max = 1e6, .above = 0})
          .add("communication_dtype", &O::communication_dtype,
               "What gradients travel as: their own numbers (same), or rounded to these.", dtype)
          .add("grad_accum_dtype", &O::grad_accum_dtype,
               "What gradients are kept and added up as: their own numbers (same), or these.", dtype)
          .add("overlap_communication", &O::overlap_communication,
               "Send each full bucket while the backward pass goes on; false: all of them when it has ended.")
          .add(
              "overlap_allgather", &O::overlap_allgather,
              "Let new weights arrive during the next forward pass, which waits block by block; false: before the step "
              "ends.")
          .add("cpu_offload", &O::cpu_offload,
               "Keep optimizer state and the weights that it updates in host memory, and update them there.")
          .add("master_weights", &O::master_weights,
               "bf16 and fp16: update fp32 copies of the weights; false: the 16-bit weights themselves.")
          .add("cast_inputs", &O::cast_inputs,
               "Bring floating-point inputs to the precision of the run; false: the model does so itself.")
          .add("no_sync", &O::no_sync,
               "Stage 2 with several microbatches a step: hold whole gradients and reduce once, for less traffic and "
               "more memory; false: reduce after each.")
          .add("extra_dp_size", &O::extra_dp_size,
               "So many groups of ranks that each share out a copy of their own: more memory, less traffic far away.",
               {.min = 1})
          .add("verbose", &O::verbose, "Print each bucket: what is in it and how much of it a rank owns.")
          .add("precision", &O::precision,
               "The numbers of weights, gradients and products; bf16 and fp16 keep fp32 masters of the owned slices.",
               {.choices = {"fp32", "bf16", "fp16", "fp64"}})
          .add("max_norm", &O::max_norm, "The gradient is scaled down to this norm when it is longer; 0 never does.",
               {.min = 0})
          .add("initial_scale", &O::initial_scale, "fp16: the loss scale at the start.", {.above = 0})
          .add("min_scale", &O::min_scale, "fp16: the loss scale never falls below it.", {.above = 0})
          .add("max_scale", &O::max_scale, "fp16: the loss scale never grows beyond it.", {.above = 0})
          .add("growth_factor", &O::growth_factor, "fp16: what the scale is multiplied by to grow.", {.above = 1})
          .add("backoff_factor", &O::backoff_factor, "fp16: what the scale is multiplied by to fall.",
               {.above = 0, .below = 1})
          .add("growth_interval", &O::growth_interval, "fp16: good steps in a row after which the scale grows.",
               {.min = 1})
          .add("hysteresis", &O::hysteresis, "fp16: overflows after which the scale falls.", {.min = 1});
  return table;
}

void LowLevelZero::configure(const config::Table* section) {
  options_ = config::read(section, low_level_zero_fields());
  if (options_.stage > 2)
    config::fail(
        section, "stage",
        fmt::format("there is no stage {} here: 1 and 2 are what this plugin does; for weights that are shared "
                    "out too, set parallel.plugin = \"gemini\"",
                    options_.stage));
}

void LowLevelZero::check(const config::RunConfig& config, int world_size) const {
  const auto* section = config.plugin_table(name());
  const auto& precision = config.train.precision;
  const auto refuse = [&](bool wrong, const char* key, const std::string& why) {
    if (wrong) config::fail(section, key, why);
  };
  refuse(options_.no_sync && options_.stage == 1, "no_sync",
         "changes nothing in stage 1, which holds whole gradients anyway and reduces once a step; remove it, or set "
         "stage = 2");
  refuse(!options_.master_weights && !is_half(precision), "master_weights",
         fmt::format("changes nothing in {}, whose weights are updated themselves; remove it, or choose bf16 or fp16",
                     precision));
  refuse(precision == "fp64" && options_.grad_accum_dtype != "same", "grad_accum_dtype",
         "would round the gradients of an fp64 run; remove it");
  refuse(precision == "fp64" && options_.communication_dtype != "same", "communication_dtype",
         "would round the gradients of an fp64 run; remove it");
  refuse(world_size % options_.extra_dp_size != 0, "extra_dp_size",
         fmt::format("{} ranks cannot be {} groups of one size; choose a divisor of {}", world_size,
                     options_.extra_dp_size, world_size));
}

std::vector<std::pair<std::string, int>> LowLevelZero::axes(int world_size) const {
  const auto outer = static_cast<int>(options_.extra_dp_size);
  if (outer == 1) return {{"dp", world_size}};
  return {{"dp_outer", outer}, {"dp", world_size / outer}};
}

BoostResult LowLevelZero::boost(ModelSource source, const BoostOptions& options, comm::Mesh& mesh, const Log& log) {
  if (options_.precision && *options_.precision != options.train.precision)
    throw ConfigError(
        fmt::format("plugin.low_level_zero.precision: \"{}\", and the options of the training say \"{}\"; "
                    "set both alike",
                    *options_.precision, options.train.precision));
  zero::GradGroups groups{mesh.group("dp"), mesh.group("dp_outer"), mesh.group(data_axes())};
  auto model = zero::ShardedModel::make(std::move(source), options, sharded(options_), std::move(groups),
                                        mesh.world().device(), log);
  if (options_.verbose)
    for (const auto& line : model->flat().describe()) log.note("{}", line);
  const double power = options_.norm_type == "2" ? 2 : INFINITY;
  auto optimizer = std::make_unique<zero::ShardedOptimizer>(*model, options, power, mesh);
  return {std::move(model), std::move(optimizer)};
}

}  // namespace trireme::plugins

TRIREME_PLUGIN(trireme::plugins::LowLevelZero)
