#include "plugins/hybrid_parallel/hybrid_parallel.h"

#include "core/base/text.h"
#include "core/booster/plugin_entry.h"
#include "core/nn/block.h"
#include "shardformer/apply.h"

namespace trireme::plugins {
namespace {

const nn::Policy* policy_for(const ModelSource& source) {
  return source.policy.empty() ? shardformer::policy_of(source.kind) : &source.policy;
}

/// Why the source's model cannot be cut over so many ranks; "": it can.
std::string why_not(const ModelSource& source, int ranks) {
  if (ranks == 1) return "";
  const auto* policy = policy_for(source);
  if (policy == nullptr)
    return fmt::format(
        "nothing says how to cut this model (policies are for: {}); give one with the model, or set "
        "tp_size = 1",
        text::join(shardformer::kinds_with_policy()));
  return shardformer::why_not(*source.model, *policy, ranks);
}

/// What a user's own modules have made becomes rank 0's: no draw by name has made it the same.
void agree_on_values(nn::Model& model, const comm::Group& group, c10::Device device) {
  const auto agree = [&](at::Tensor tensor) {
    auto whole = tensor.detach().to(device).contiguous();
    group.broadcast(whole, 0);
    tensor.detach().copy_(whole);
  };
  for (const auto& parameter : nn::declarations(model))
    if (!parameter.init) agree(parameter.value);
  for (const auto& buffer : model.buffers()) agree(buffer);
}

}  // namespace

const Fields<HybridParallelOptions>& hybrid_parallel_fields() {
  using O = HybridParallelOptions;
  static const auto table = [] {
    auto rows =
        Fields<O>("plugin.hybrid_parallel",
                  "Tensor parallelism, and data parallelism with ZeRO over what it leaves: ranks = dp x tp. Keys that "
                  "[train] has too may be written in either; the loss scale's in the one that says fp16.")
            .add("tp_size", &O::tp_size,
                 "So many ranks, neighbours, share each layer: attention heads, the MLP's width, the classes. Sizes "
                 "need not divide evenly. Short: parallel.tp.",
                 {.min = 1, .max = 65536})
            .add("zero_stage", &O::zero_stage,
                 "Over the data-parallel ranks: 0 shares out nothing, 1 the optimizer's state, 2 the gradients too. "
                 "Short: parallel.zero. (Stage 3 is the plugin gemini.)",
                 {.min = 0})
            .add(
                "zero_bucket_size_in_m", &O::zero_bucket_size_in_m,
                "Size of a gradient bucket, in units of 2^20 elements. Unset: 12, or an eighth of what a rank holds if "
                "that is smaller than 96.",
                {.max = 1e6, .above = 0});
    add_sharded_options(rows);
    return rows;
  }();
  return table;
}

void HybridParallel::configure(const config::Table* section) {
  options_ = config::read(section, hybrid_parallel_fields());
  if (options_.zero_stage > 2)
    config::fail(section, "zero_stage",
                 fmt::format("there is no stage {} here, only 0, 1 and 2; for weights that are shared out too, set "
                             "parallel.plugin = \"gemini\"",
                             options_.zero_stage));
}

void HybridParallel::check(const config::RunConfig& config, int world_size) const {
  const auto* section = config.plugin_table(name());
  check_sharded_options(section, options_, config.train.precision);
  const auto tp = options_.tp_size;
  if (world_size % tp != 0)
    config::fail(section, "tp_size",
                 fmt::format("ranks = dp x tp, and {} is no multiple of tp = {}; start {} ranks, or choose a tp that "
                             "divides {}",
                             world_size, tp, (world_size / tp + 1) * tp, world_size));
  const auto dp = world_size / tp;
  if (options_.zero_stage > 0 && dp == 1 && world_size > 1)
    config::fail(section, "zero_stage",
                 fmt::format("changes nothing: tp = {} leaves no data-parallel ranks to share anything out; remove it, "
                             "or start {} ranks",
                             tp, 2 * tp));
  if (options_.overlap_allgather && options_.zero_stage == 0)
    config::fail(section, "overlap_allgather",
                 "changes nothing with zero_stage = 0, where no weights are gathered; remove it, or share out more");
  for (const char* key : {"communication_dtype", "overlap_communication"})
    if (dp == 1 && world_size > 1 && is_changed(fields(), key, &options_))
      config::fail(
          section, key,
          fmt::format("changes nothing: tp = {} leaves no data-parallel ranks to reduce gradients over; remove "
                      "it, or start {} ranks",
                      tp, 2 * tp));
  if (tp > 1 && config.data.on_bad_sample == "skip")
    config::fail(config.root.table("data"), "on_bad_sample",
                 "\"skip\" is left to each rank, and the ranks of a tensor-parallel group must see the same samples; "
                 "choose \"error\"");
}

void HybridParallel::check_model(const ModelSource& source, const config::RunConfig& config) const {
  const auto why = why_not(source, static_cast<int>(options_.tp_size));
  if (!why.empty()) config::fail(config.plugin_table(name()), "tp_size", why);
}

std::vector<std::pair<std::string, int>> HybridParallel::axes(int world_size) const {
  const auto tp = static_cast<int>(options_.tp_size);
  return {{"dp", world_size / tp}, {"tp", tp}};
}

BoostResult HybridParallel::boost(ModelSource source, const BoostOptions& given, comm::Mesh& mesh, const Log& log) {
  const auto options = with_section(*this, options_, given);
  const auto& tp = mesh.group("tp");
  const auto& dp = mesh.group("dp");
  const auto why = why_not(source, tp.size());
  if (!why.empty()) throw ConfigError(fmt::format("plugin.hybrid_parallel.tp_size: {}", why));
  if (tp.size() > 1) {
    shardformer::apply(*source.model, *policy_for(source), tp);
    agree_on_values(*source.model, tp, mesh.world().device());
  }
  const auto alone = comm::Group::alone("dp", mesh.world().rank(), nullptr);
  const zero::GradGroups groups =
      options_.zero_stage == 0 ? zero::GradGroups{alone, dp, dp} : zero::GradGroups{dp, alone, dp};
  const ShardedPlan plan{.stage = static_cast<int>(options_.zero_stage), .bucket_mi = options_.zero_bucket_size_in_m};
  return boost_sharded(source, options, options_, plan, groups, mesh, log);
}

}  // namespace trireme::plugins

TRIREME_PLUGIN(trireme::plugins::HybridParallel)
