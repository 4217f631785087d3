#include "plugins/hybrid_parallel/hybrid_parallel.h"

#include "core/base/text.h"
#include "core/booster/plugin_entry.h"
#include "core/booster/precision.h"
#include "core/nn/block.h"
#include "pipeline/schedule/schedules.h"
#include "plugins/hybrid_parallel/pipelined.h"
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

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

/// Why a rank's samples of a global batch cannot be so many microbatches; "": they can.
std::string why_not_parts(std::int64_t share, std::int64_t parts) {
  const auto made = ceil_div(share, ceil_div(share, parts));
  return made == parts ? ""
                       : fmt::format(
                             "{} samples a rank cannot be {} parts that are alike but for the last; choose {}, "
                             "or another train.global_batch",
                             share, parts, made);
}

}  // namespace

const Fields<HybridParallelOptions>& hybrid_parallel_fields() {
  using O = HybridParallelOptions;
  static const auto table = [] {
    auto rows =
        Fields<O>("plugin.hybrid_parallel",
                  "Tensor and pipeline parallelism, and data parallelism with ZeRO over what they leave: ranks = dp x "
                  "pp x tp. Keys that [train] has too may be written in either; the loss scale's in the one that says "
                  "fp16.")
            .add("tp_size", &O::tp_size,
                 "So many ranks, neighbours, share each layer: attention heads, the MLP's width, the classes. Sizes "
                 "need not divide evenly. Short: parallel.tp.",
                 {.min = 1, .max = 65536})
            .add("pp_size", &O::pp_size,
                 "So many ranks run the model's blocks one after the other, each its own. Short: parallel.pp.",
                 {.min = 1, .max = 4096})
            .add("pp_style", &O::pp_style,
                 "The order in which a pipeline's ranks take the microbatches. interleaved and zbv give each rank "
                 "several "
                 "stages; zb_h1 and zbv put off weight gradients to where a rank would wait. Short: parallel.schedule.",
                 {.choices = pipeline::schedule_names()})
            .add("num_model_chunks", &O::num_model_chunks, "interleaved: stages on each rank.", {.min = 1, .max = 4096})
            .add("num_microbatches", &O::num_microbatches,
                 "Into so many parts a rank's share of the global batch is cut; wins over microbatch_size. Unset, with "
                 "a "
                 "pipeline and no other word on it: four times pp_size, or one a sample.",
                 {.min = 1, .max = 1e9})
            .add("microbatch_size", &O::microbatch_size, "The same as train.micro_batch: samples of each part.",
                 {.min = 1, .max = 1e9})
            .add(
                "num_layers_per_stage", &O::num_layers_per_stage,
                "Blocks of each stage, in forward order, the first (embeddings) and the last (head) counted. Empty: by "
                "pp_partition.",
                {.min = 1, .max = 1e6})
            .add("pp_partition", &O::pp_partition,
                 "uniform: as many blocks on each stage, those in the middle one more; parameters: as many parameters.",
                 {.choices = {"uniform", "parameters"}})
            .add("dp_outside", &O::dp_outside,
                 "Order of the ranks: dp x pp x tp; false: pp x dp x tp, where data-parallel ranks are closer.")
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
  const auto tp = options_.tp_size, pp = options_.pp_size;
  if (world_size % (tp * pp) != 0)
    config::fail(section, tp > 1 || pp == 1 ? "tp_size" : "pp_size",
                 fmt::format("ranks = dp x pp x tp, and {} is no multiple of {} x {}; start {} ranks, or choose sizes "
                             "whose product divides {}",
                             world_size, pp, tp, (world_size / (tp * pp) + 1) * tp * pp, world_size));
  const auto dp = world_size / (tp * pp);
  // What leaves no data-parallel ranks.
  const auto taken = pp == 1   ? fmt::format("tp = {} leaves", tp)
                     : tp == 1 ? fmt::format("pp = {} leaves", pp)
                               : fmt::format("pp = {} and tp = {} leave", pp, tp);
  if (options_.zero_stage > 0 && dp == 1 && world_size > 1)
    config::fail(section, "zero_stage",
                 fmt::format("changes nothing: {} no data-parallel ranks to share anything out; remove it, or start {} "
                             "ranks",
                             taken, 2 * tp * pp));
  if (options_.overlap_allgather && options_.zero_stage == 0)
    config::fail(section, "overlap_allgather",
                 "changes nothing with zero_stage = 0, where no weights are gathered; remove it, or share out more");
  for (const char* key : {"communication_dtype", "overlap_communication", "dp_outside"})
    if (dp == 1 && world_size > 1 && is_changed(fields(), key, &options_))
      config::fail(section, key,
                   fmt::format("changes nothing: {} no data-parallel ranks to reduce gradients over; remove it, or "
                               "start {} ranks",
                               taken, 2 * tp * pp));
  if (tp * pp > 1 && config.data.on_bad_sample == "skip")
    config::fail(
        config.root.table("data"), "on_bad_sample",
        "\"skip\" is left to each rank, and the ranks of a tensor-parallel group or a pipeline must see the same "
        "samples; choose \"error\"");
  if (options_.num_microbatches) {
    const auto why = why_not_parts(share_of(config.train, static_cast<int>(dp)), *options_.num_microbatches);
    if (!why.empty()) config::fail(section, "num_microbatches", why);
  }
  check_pipeline(section, config);
}

void HybridParallel::check_pipeline(const config::Table* section, const config::RunConfig& config) const {
  if (options_.pp_size == 1)
    for (const char* key : {"pp_style", "num_model_chunks", "num_layers_per_stage", "pp_partition", "dp_outside"})
      if (is_changed(fields(), key, &options_))
        config::fail(section, key, "changes nothing: there is no pipeline; remove it, or set pp_size to 2 or more");
  if (!options_.num_layers_per_stage.empty() && is_changed(fields(), "pp_partition", &options_))
    config::fail(section, "pp_partition", "changes nothing beside num_layers_per_stage; leave one");
  const auto& wanted = config.train.micro_batch;
  if (wanted && options_.microbatch_size.value_or(*wanted) != *wanted)
    config::fail(
        section, "microbatch_size",
        fmt::format("is {}, and train.micro_batch is {}; say it once, or alike", *options_.microbatch_size, *wanted));
  if (wanted && options_.num_microbatches)
    config::fail(section, "num_microbatches",
                 fmt::format("and train.micro_batch ({}) say the same thing in two ways; leave one", *wanted));
  try {
    pipeline::make_schedule(options_.pp_style, static_cast<int>(options_.pp_size), chunks(), 1);
  } catch (const ConfigError& error) {
    config::fail(section, "num_model_chunks", error.what());
  }
}

std::int64_t HybridParallel::micro_batch(std::optional<std::int64_t> wanted, std::int64_t share) const {
  if (options_.num_microbatches) {
    const auto why = why_not_parts(share, *options_.num_microbatches);
    if (!why.empty()) throw ConfigError(fmt::format("plugin.hybrid_parallel.num_microbatches: {}", why));
    return ceil_div(share, *options_.num_microbatches);
  }
  if (options_.microbatch_size) wanted = options_.microbatch_size;
  if (wanted || options_.pp_size == 1) return std::min(wanted.value_or(share), share);
  return ceil_div(share, 4 * options_.pp_size);  // in 1f1b a bubble of about a fifth
}

void HybridParallel::check_model(const ModelSource& source, const config::RunConfig& config) const {
  const auto* section = config.plugin_table(name());
  const auto why = why_not(source, static_cast<int>(options_.tp_size));
  if (!why.empty()) config::fail(section, "tp_size", why);
  if (options_.pp_size == 1) return;
  try {
    plan_stages(*source.model, stage_choice(), static_cast<int>(options_.pp_size), 0);
  } catch (const ConfigError& error) {
    config::fail(section, options_.num_layers_per_stage.empty() ? "pp_size" : "num_layers_per_stage", error.what());
  }
}

StageChoice HybridParallel::stage_choice() const {
  return {options_.pp_style, chunks(), options_.pp_partition, options_.num_layers_per_stage};
}

std::vector<std::pair<std::string, int>> HybridParallel::axes(int world_size) const {
  const auto tp = static_cast<int>(options_.tp_size), pp = static_cast<int>(options_.pp_size);
  const std::pair<std::string, int> dp{"dp", world_size / (tp * pp)};
  if (pp == 1) return {dp, {"tp", tp}};
  if (!options_.dp_outside) return {{"pp", pp}, dp, {"tp", tp}};
  return {dp, {"pp", pp}, {"tp", tp}};
}

/// Keeps this rank's blocks; nothing has memory yet.
static StagePlan keep_stages(nn::Model& model, const StageChoice& choice, const comm::Group& line) {
  auto plan = plan_stages(model, choice, line.size(), line.rank());
  std::vector<std::size_t> blocks;
  for (const auto& [begin, end] : plan.mine)
    for (auto block = begin; block < end; ++block) blocks.push_back(static_cast<std::size_t>(block));
  std::sort(blocks.begin(), blocks.end());
  model.keep(std::move(blocks), line.axis());
  nn::release_elsewhere(model);
  return plan;
}

/// By parameter: the section of its gradient.
static std::function<int(const std::string&)> sections(nn::Model& model, const StagePlan& plan) {
  std::map<std::string, int> of;
  for (const auto& [name, blocks] : nn::users(model))
    for (std::size_t chunk = 0; chunk < plan.mine.size(); ++chunk)
      if (const auto block = static_cast<std::int64_t>(blocks.front());
          plan.mine[chunk].begin <= block && block < plan.mine[chunk].end)
        of[name] = plan.section_of(static_cast<int>(chunk));
  for (const auto& shared : plan.shared) of[shared.name] = plan.late_section();
  return [of = std::move(of)](const std::string& name) { return of.at(name); };
}

BoostResult HybridParallel::boost(ModelSource source, const BoostOptions& given, comm::Mesh& mesh, const Log& log) {
  const auto options = with_section(*this, options_, given);
  const auto &dp = mesh.group("dp"), &pp = mesh.group("pp"), &tp = mesh.group("tp");
  const auto why = why_not(source, tp.size());
  if (!why.empty()) throw ConfigError(fmt::format("plugin.hybrid_parallel.tp_size: {}", why));
  if (tp.size() * pp.size() > 1) agree_on_values(*source.model, mesh.world().group(), mesh.world().device());
  if (tp.size() > 1) shardformer::apply(*source.model, *policy_for(source), tp);
  const auto alone = comm::Group::alone("dp", mesh.world().rank(), nullptr);
  const bool shares = options_.zero_stage > 0;
  const auto groups = shares ? zero::GradGroups{dp, alone, dp} : zero::GradGroups{alone, dp, dp};
  ShardedPlan plan{.stage = static_cast<int>(options_.zero_stage), .bucket_mi = options_.zero_bucket_size_in_m};
  plan.norm_axes = shares ? std::vector<std::string>{"dp", "pp", "tp"} : std::vector<std::string>{"pp", "tp"};
  if (pp.size() == 1) {
    auto [model, optimizer] = boost_sharded(source, options, options_, plan, groups, mesh, log);
    return {std::move(model), std::move(optimizer)};
  }
  auto stages = keep_stages(*source.model, stage_choice(), pp);
  plan.section_of = sections(*source.model, stages);
  plan.late_section = stages.late_section();
  auto [model, optimizer] = boost_sharded(source, options, options_, plan, groups, mesh, log);
  const auto loss_type = Precision::parse(options.train.precision).loss;
  return {std::make_unique<PipelinedModel>(std::move(model), std::move(stages), loss_type, mesh), std::move(optimizer)};
}

}  // namespace trireme::plugins

TRIREME_PLUGIN(trireme::plugins::HybridParallel)
