#include "plugins/hybrid_parallel/hybrid_parallel.h"

#include "core/base/text.h"
#include "core/booster/plugin_entry.h"
#include "core/nn/block.h"
#include "shardformer/apply.h"

namespace trireme::plugins {
namespace {

using shardformer::Sequence;

const nn::Policy* policy_for(const ModelSource& source) {
  return source.policy.empty() ? shardformer::policy_of(source.kind) : &source.policy;
}

/// Why the source's model cannot be cut over so many ranks; "": it can.
std::string why_not(const ModelSource& source, const shardformer::Sizes& sizes) {
  if (sizes.tensor == 1 && sizes.mode == Sequence::none) return "";
  const auto* policy = policy_for(source);
  if (policy == nullptr)
    return fmt::format(
        "nothing says how to cut this model (policies are for: {}); give one with the model, or set "
        "tp_size = 1, and no sequence_parallelism_mode",
        text::join(shardformer::kinds_with_policy()));
  return shardformer::why_not(*source.model, *policy, sizes);
}

const std::vector<std::pair<std::string, Sequence>>& modes() {
  static const std::vector<std::pair<std::string, Sequence>> all{{"split_gather", Sequence::split_gather},
                                                                 {"ring", Sequence::ring},
                                                                 {"all_to_all", Sequence::all_to_all},
                                                                 {"ring_attn", Sequence::ring_attn}};
  return all;
}

std::vector<std::string> mode_names() {
  std::vector<std::string> names;
  for (const auto& [name, mode] : modes()) names.push_back(name);
  return names;
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
                  "Tensor and sequence parallelism, and data parallelism with ZeRO over what they leave: ranks = dp x "
                  "sp x tp. Keys that [train] has too may be written in either; the loss scale's in the one that says "
                  "fp16.")
            .add("tp_size", &O::tp_size,
                 "So many ranks, neighbours, share each layer: attention heads, the MLP's width, the classes. Sizes "
                 "need not divide evenly. Short: parallel.tp.",
                 {.min = 1, .max = 65536})
            .add("sp_size", &O::sp_size,
                 "So many ranks share the tokens of each sample. split_gather and ring share them out over the ranks "
                 "of tp_size, and need no telling; all_to_all and ring_attn have ranks of their own. Short: "
                 "parallel.sp.",
                 {.min = 1, .max = 65536})
            .add("sequence_parallelism_mode", &O::sequence_parallelism_mode,
                 "How tokens are shared out. split_gather: between tensor-parallel layers; ring: the same, in hops "
                 "beside the products; all_to_all: everywhere, attention by heads; ring_attn: everywhere, keys and "
                 "values travel. Unset: not. Short: parallel.sp_mode.",
                 {.choices = mode_names()})
            .add("enable_sequence_parallelism", &O::enable_sequence_parallelism,
                 "Whether tokens are shared out. Unset: when sequence_parallelism_mode says how.")
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
  mode_ = Sequence::none;
  for (const auto& [name, mode] : modes())
    if (name == options_.sequence_parallelism_mode) mode_ = mode;
  check_sequence(section);
  if (options_.zero_stage > 2)
    config::fail(section, "zero_stage",
                 fmt::format("there is no stage {} here, only 0, 1 and 2; for weights that are shared out too, set "
                             "parallel.plugin = \"gemini\"",
                             options_.zero_stage));
}

void HybridParallel::check_sequence(const config::Table* section) const {
  const auto& o = options_;
  const bool on = mode_ != Sequence::none;
  const auto refuse = [&](bool wrong, const char* key, const std::string& why) {
    if (wrong) config::fail(section, key, why);
  };
  const auto names = text::join(mode_names());
  const char* const kMode = "sequence_parallelism_mode";
  refuse(o.enable_sequence_parallelism.value_or(on) && !on, "enable_sequence_parallelism",
         fmt::format("says yes, and nothing says how; set {} (one of {})", kMode, names));
  refuse(!o.enable_sequence_parallelism.value_or(on) && on, "enable_sequence_parallelism",
         fmt::format("says no, and {} is \"{}\"; leave one of the two out", kMode,
                     o.sequence_parallelism_mode.value_or("")));
  refuse(o.sp_size.value_or(1) > 1 && !on, "sp_size",
         fmt::format("{} ranks are to share each sample, and nothing says how; set {} (one of {})",
                     o.sp_size.value_or(1), kMode, names));
  if (!on) return;
  if (!shardformer::reuses_tensor(mode_))
    return refuse(o.sp_size.value_or(1) == 1, kMode, "changes nothing with sp_size = 1; set sp_size to 2 or more");
  refuse(o.tp_size == 1, kMode,
         "shares out the tokens over the tensor-parallel ranks, and tp_size is 1; set tp_size to 2 or more, or choose "
         "a mode with ranks of its own and sp_size");
  refuse(o.sp_size.value_or(o.tp_size) != o.tp_size, "sp_size",
         fmt::format("{} reuses the {} ranks of tp_size; leave sp_size out, or set it to {}",
                     o.sequence_parallelism_mode.value_or(""), o.tp_size, o.tp_size));
}

std::int64_t HybridParallel::sp() const {
  return mode_ == Sequence::none || shardformer::reuses_tensor(mode_) ? 1 : options_.sp_size.value_or(1);
}

void HybridParallel::check(const config::RunConfig& config, int world_size) const {
  const auto* section = config.plugin_table(name());
  check_sharded_options(section, options_, config.train.precision);
  const auto tp = options_.tp_size, inner = tp * sp();
  if (world_size % inner != 0)
    config::fail(section, sp() > 1 ? "sp_size" : "tp_size",
                 fmt::format("ranks = dp x {0}tp, and {1} is no multiple of {2}tp = {3}; start {4} ranks, or choose "
                             "{5} that divides {1}",
                             sp() > 1 ? "sp x " : "", world_size, sp() > 1 ? "sp x " : "", inner,
                             (world_size / inner + 1) * inner, sp() > 1 ? "a product" : "a tp"));
  // Gradients are summed over, and ZeRO shares out over, what tp leaves.
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
  if (inner > 1 && config.data.on_bad_sample == "skip")
    config::fail(config.root.table("data"), "on_bad_sample",
                 fmt::format("\"skip\" is left to each rank, and the ranks of a {}-parallel group must see the same "
                             "samples; choose \"error\"",
                             tp > 1 ? "tensor" : "sequence"));
}

void HybridParallel::check_model(const ModelSource& source, const config::RunConfig& config) const {
  const auto tp = static_cast<int>(options_.tp_size);
  const auto why = why_not(source, {tp, mode_, static_cast<int>(sp())});
  if (!why.empty()) config::fail(config.plugin_table(name()), tp > 1 ? "tp_size" : "sp_size", why);
}

std::vector<std::pair<std::string, int>> HybridParallel::axes(int world_size) const {
  const auto tp = static_cast<int>(options_.tp_size), own = static_cast<int>(sp());
  std::vector<std::pair<std::string, int>> axes{{"dp", world_size / (own * tp)}};
  if (own > 1) axes.emplace_back("sp", own);
  axes.emplace_back("tp", tp);
  return axes;
}

/// Ranks that share out the tokens of a sample have each a part of every gradient, as those that share out samples do.
zero::GradGroups HybridParallel::grad_groups(comm::Mesh& mesh) const {
  const std::vector<std::string> axes{"dp", "sp"};
  const auto& everyone = mesh.group(axes);
  const auto alone = comm::Group::alone("dp", mesh.world().rank(), nullptr);
  if (options_.zero_stage == 0) return {alone, everyone, everyone};
  return {everyone, alone, everyone, axes};
}

BoostResult HybridParallel::boost(ModelSource source, const BoostOptions& given, comm::Mesh& mesh, const Log& log) {
  const auto options = with_section(*this, options_, given);
  const auto& tp = mesh.group("tp");
  const shardformer::Groups cut{tp, mode_, mesh.group("sp")};
  const auto why = why_not(source, cut.sizes());
  if (!why.empty()) throw ConfigError(fmt::format("plugin.hybrid_parallel.tp_size: {}", why));
  if (tp.size() > 1 || mode_ != Sequence::none) shardformer::apply(*source.model, *policy_for(source), cut);
  if (tp.size() > 1) agree_on_values(*source.model, tp, mesh.world().device());
  const ShardedPlan plan{.stage = static_cast<int>(options_.zero_stage),
                         .bucket_mi = options_.zero_bucket_size_in_m,
                         .counts_loss = mesh.coordinate("sp") == 0};
  const auto groups = grad_groups(mesh);
  return boost_sharded(source, options, options_, plan, groups, mesh, log);
}

}  // namespace trireme::plugins

TRIREME_PLUGIN(trireme::plugins::HybridParallel)
