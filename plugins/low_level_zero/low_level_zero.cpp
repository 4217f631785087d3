#include "plugins/low_level_zero/low_level_zero.h"

#include <cmath>

#include "core/base/text.h"
#include "core/booster/plugin_entry.h"
#include "plugins/zero_options.h"
#include "zero/sharded_optimizer.h"

namespace trireme::plugins {
namespace {

std::optional<at::ScalarType> dtype_of(const std::string& name) {
  if (name == "fp32") return at::kFloat;
  if (name == "bf16") return at::kBFloat16;
  if (name == "fp16") return at::kHalf;
  return std::nullopt;
}

zero::ShardedOptions sharded(const LowLevelZeroOptions& o) {
  zero::ShardedOptions out;
  out.partition_gradients = o.stage == 2;
  out.overlap_reduce = o.overlap_communication;
  out.overlap_gather = o.overlap_allgather;
  out.cast_inputs = o.cast_inputs;
  out.hold_gradients = o.no_sync;
  out.communication_dtype = dtype_of(o.communication_dtype);
  out.accumulation_dtype = dtype_of(o.grad_accum_dtype);
  return out;
}

/// Elements of a bucket, and a line that says what they are.
std::pair<std::int64_t, std::string> bucket_size(const LowLevelZeroOptions& o, std::int64_t parameters) {
  if (o.reduce_bucket_size_in_m) return {mebi(*o.reduce_bucket_size_in_m), ""};
  const auto size = zero::default_bucket_elements(parameters);
  return {size, size < 12 * 1024 * 1024
                    ? fmt::format(" of {} elements (12 Mi, shrunk to the model)", text::thousands(size))
                    : ""};
}

Fields<LowLevelZeroOptions> make_fields() {
  using O = LowLevelZeroOptions;
  const FieldRules dtype{.choices = {"same", "fp32", "bf16", "fp16"}};
  auto table =
      Fields<O>("plugin.low_level_zero",
                "ZeRO stages 1 and 2. Keys that [train] has too may be written in either; the loss scale's in the one "
                "that says fp16.")
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
               "bf16 and fp16: update fp32 copies of the weights; false: the 16-bit weights themselves, with 16-bit "
               "state, "
               "which is too narrow for Adam in fp16.")
          .add("cast_inputs", &O::cast_inputs,
               "Bring floating-point inputs to the precision of the run; false: the model does so itself.")
          .add("no_sync", &O::no_sync,
               "Stage 2 with several microbatches a step: hold whole gradients and reduce once, for less traffic and "
               "more memory; false: reduce after each.")
          .add("extra_dp_size", &O::extra_dp_size,
               "So many groups of ranks that each share out a copy of their own: more memory, less traffic far away.",
               {.min = 1})
          .add("verbose", &O::verbose, "Print each bucket: what is in it and how much of it a rank owns.");
  add_train_options(table);
  return table;
}

}  // namespace

const Fields<LowLevelZeroOptions>& low_level_zero_fields() {
  static const auto table = make_fields();
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
  check_zero_options(section, options_, config.train, world_size);
  const auto refuse = [&](bool wrong, const char* key, const std::string& why) {
    if (wrong) config::fail(section, key, why);
  };
  refuse(options_.no_sync && options_.stage == 1, "no_sync",
         "changes nothing in stage 1, which holds whole gradients anyway and reduces once a step; remove it, or set "
         "stage = 2");
  check_holding(section, "no_sync", options_.no_sync, config.train);
  refuse(!options_.cast_inputs && !is_half(precision), "cast_inputs",
         fmt::format("changes nothing in {}, as which inputs come anyway; remove it", precision));
  for (const auto& [key, value] : {std::pair{"communication_dtype", options_.communication_dtype},
                                   std::pair{"grad_accum_dtype", options_.grad_accum_dtype}})
    refuse(value == precision, key, fmt::format("changes nothing: gradients are {} anyway; remove it", precision));
  refuse(precision == "fp64" && options_.grad_accum_dtype != "same", "grad_accum_dtype",
         "would round the gradients of an fp64 run; remove it");
  refuse(precision == "fp64" && options_.communication_dtype != "same", "communication_dtype",
         "would round the gradients of an fp64 run; remove it");
}

std::vector<std::pair<std::string, int>> LowLevelZero::axes(int world_size) const {
  return zero_axes(options_.extra_dp_size, world_size);
}

BoostResult LowLevelZero::boost(ModelSource source, const BoostOptions& given, comm::Mesh& mesh, const Log& log) {
  const auto options = with_section(*this, options_, given);
  const zero::GradGroups groups{mesh.group("dp"), mesh.group("dp_outer"), mesh.group(data_axes())};
  zero::freeze(*source.model, options.optimizer);
  const auto parameters = nn::parameter_count(*source.model);
  const auto [elements, said] = bucket_size(options_, parameters);
  auto buckets = zero::plan_buckets(nn::declarations(*source.model), elements, groups.shards.size());
  const auto count = buckets.size();
  std::vector<zero::Residence> homes(count, {.stays = true, .offload_master = options_.cpu_offload});
  auto weights =
      zero::make_weights(source, zero::weights_options(options, options_.master_weights, mesh.world().device()),
                         std::move(buckets), std::move(homes), groups, log);
  auto model = std::make_unique<zero::ShardedModel>(source.model, std::move(weights), options, sharded(options_),
                                                    groups, mesh.world().device());
  model->note(fmt::format("a rank updates 1/{} of {} parameters; {} gradient buckets{}", groups.shards.size(),
                          text::thousands(parameters), count, said));
  if (options_.no_sync)
    model->note(microbatches(options.train, groups.everyone.size()) > 1
                    ? "no_sync: whole gradients are held over the microbatches of a step, and reduced once"
                    : "no_sync changes nothing on so many ranks: a step has one microbatch");
  if (options_.verbose)
    for (const auto& line : model->flat().describe("bucket")) log.note("{}", line);
  const double power = options_.norm_type == "2" ? 2 : INFINITY;
  auto optimizer = std::make_unique<zero::ShardedOptimizer>(*model, options, power, mesh);
  return {std::move(model), std::move(optimizer)};
}

}  // namespace trireme::plugins

TRIREME_PLUGIN(trireme::plugins::LowLevelZero)
