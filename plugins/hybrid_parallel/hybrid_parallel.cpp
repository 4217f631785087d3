#include "plugins/hybrid_parallel/hybrid_parallel.h"

#include "core/base/text.h"
#include "core/booster/plugin_entry.h"
#include "core/booster/precision.h"
#include "core/nn/block.h"
#include "pipeline/block_costs.h"
#include "plugins/hybrid_parallel/pipelined.h"
#include "shardformer/apply.h"
#include "shardformer/label_loss.h"

namespace trireme::plugins {
namespace {

using shardformer::Sequence;

/// Why the source's model cannot be sharded over this number of ranks, and the key that requests it; "" when it can.
struct Problem {
  std::string text;
  const char* key = "tp_size";
};

std::string problem_of(const ModelSource& source, const shardformer::ParallelSizes& sizes) {
  if (sizes.tensor == 1 && sizes.mode == Sequence::none) return "";
  if (source.policy.empty())
    return "this model has no tensor-parallel policy; set ModelSource::policy, or set tp_size = 1 and no "
           "sequence_parallelism_mode";
  return shardformer::validate(*source.model, source.policy, sizes);
}

Problem validate(const ModelSource& source, const shardformer::ParallelSizes& sizes) {
  if (auto text = problem_of(source, {sizes.tensor, Sequence::none, 1}); !text.empty()) return {std::move(text)};
  const bool own = sizes.mode != Sequence::none && !shardformer::reuses_tensor(sizes.mode);
  return {problem_of(source, sizes), own ? "sp_size" : "sequence_parallelism_mode"};
}

/// Broadcasts rank 0's values of the parameters of a user's own modules, which are not initialised by name.
void agree_on_values(nn::Model& model, const comm::Group& group, c10::Device device) {
  const auto agree = [&](at::Tensor tensor) {
    auto whole = tensor.detach().to(device).contiguous();
    group.broadcast(whole, 0);
    tensor.detach().copy_(whole);
  };
  for (const auto& parameter : nn::declarations(model))
    if (!parameter.init) agree(parameter.value);
}

}  // namespace

void HybridParallel::configure(const config::Table* section) {
  options_ = config::read(section, hybrid_parallel_fields());
  check_sequence(section, options_);
  check_kernels(section, options_, options_.mode());
}

/// "pp = 2 and tp = 2": the sizes above 1 of the axes other than data parallelism.
static std::string taken(const HybridParallelOptions& o) {
  std::vector<std::string> sizes;
  for (const auto& [name, size] : {std::pair{"pp", o.pp_size}, std::pair{"sp", o.sp()}, std::pair{"tp", o.tp_size}})
    if (size > 1) sizes.push_back(fmt::format("{} = {}", name, size));
  return text::join(sizes, " and ");
}

void HybridParallel::check(const RunSettings& run) const {
  const auto* section = run.section;
  const auto world_size = run.world_size;
  const auto& o = options_;
  check_sharded_options(section, o, run.train.precision);
  if (world_size % o.inner() != 0) {
    const char* key = o.tp_size > 1 ? "tp_size" : o.pp_size > 1 ? "pp_size" : "sp_size";
    config::fail(section, key,
                 fmt::format("ranks = dp x pp x sp x tp, but {} is not a multiple of {} ({}); start {} ranks, or "
                             "choose sizes whose product divides {}",
                             world_size, o.inner(), taken(o), (world_size / o.inner() + 1) * o.inner(), world_size));
  }
  const auto dp = world_size / o.inner();
  // Gradients are summed over the data- and sequence-parallel ranks, and ZeRO partitions over them.
  const bool reduces = dp * o.sp() > 1 || world_size == 1;
  if (o.zero_stage > 0 && !reduces)
    config::fail(
        section, "zero_stage",
        fmt::format("has no effect: {} leaves no data-parallel ranks to partition over; remove it, or start {} ranks",
                    taken(o), 2 * world_size));
  if (o.overlap_allgather && o.zero_stage == 0)
    config::fail(section, "overlap_allgather",
                 "has no effect with zero_stage = 0, which gathers no weights; remove it, or set zero_stage");
  for (const char* key : {"communication_dtype", "overlap_communication"})
    if (!reduces && is_changed(fields(), key, &o))
      config::fail(
          section, key,
          fmt::format(
              "has no effect: {} leaves no data-parallel ranks to reduce gradients over; remove it, or start {} ranks",
              taken(o), 2 * world_size));
  if (o.tp_size == 1 && !o.parallel_output)
    config::fail(section, "parallel_output", "has no effect: tp_size is 1, so logits are not split; remove it");
  if (dp == 1 && !o.dp_outside)
    config::fail(section, "dp_outside", "has no effect: there are no data-parallel ranks; remove it");
  if (o.inner() > 1 && run.skips_bad_samples)
    throw ConfigError(fmt::format(
        "data.on_bad_sample: with \"skip\" each rank would skip samples on its own, but with {} several ranks must "
        "see the same samples; choose \"error\"",
        taken(o)));
  check_recompute(section, o, run.train.recompute);
  if (!o.recompute_layers_per_stage.empty() && !o.knows_stages())
    config::fail(section, "recompute_layers_per_stage",
                 fmt::format("counts blocks per stage, but pp_partition = \"{}\" chooses the stages at run time; set "
                             "num_layers_per_stage too, or use recompute_ratio instead",
                             o.pp_partition));
  check_pipeline(section, o, run.train, share_of(run.train, static_cast<int>(dp)));
}

void HybridParallel::check_model(const ModelSource& source, const RunSettings& run) const {
  const auto* section = run.section;
  const auto& o = options_;
  const auto why = validate(source, {static_cast<int>(o.tp_size), o.mode(), static_cast<int>(o.sp())});
  if (!why.text.empty()) config::fail(section, why.key, why.text);
  if (o.tp_size > 1 && !o.parallel_output && shardformer::classes_of(*source.model, source.policy) == 0)
    config::fail(section, "parallel_output",
                 "has no effect: the policy gives no layer the role classifier_head; remove it");
  check_kernels(section, o, o.mode(), *source.model);
  std::vector<pipeline::Stage> stages;
  try {
    stages = stages_of(*source.model);
  } catch (const ConfigError& error) {
    const char* key = o.num_model_chunks ? "num_model_chunks" : "pp_size";
    config::fail(section, o.num_layers_per_stage.empty() ? key : "num_layers_per_stage", error.what());
  }
  if (run.train.recompute && o.knows_stages()) recomputed_blocks(section, o, stages);
}

std::vector<pipeline::Stage> HybridParallel::stages_of(nn::Model& model) const {
  const auto ranks = static_cast<int>(options_.pp_size);
  if (ranks == 1) return {{0, static_cast<std::int64_t>(model.blocks().size())}};
  return plan_stages(model, stage_choice(), ranks, 0).stages;
}

std::int64_t HybridParallel::micro_batch(std::optional<std::int64_t> wanted, std::int64_t share) const {
  const auto cut = [share](std::int64_t parts) { return (share + parts - 1) / parts; };
  if (options_.num_microbatches) {
    const auto why = validate_microbatches(share, *options_.num_microbatches);
    if (!why.empty()) throw ConfigError(fmt::format("plugin.hybrid_parallel.num_microbatches: {}", why));
    return cut(*options_.num_microbatches);
  }
  if (options_.microbatch_size) wanted = options_.microbatch_size;
  if (wanted || options_.pp_size == 1) return std::min(wanted.value_or(share), share);
  return cut(4 * options_.pp_size);  // in 1f1b this gives a bubble of about a fifth
}

StageChoice HybridParallel::stage_choice() const {
  return {options_.pp_style, options_.chunks(), options_.num_layers_per_stage};
}

std::vector<std::pair<std::string, int>> HybridParallel::axes(int world_size) const {
  const auto size = [](std::int64_t n) { return static_cast<int>(n); };
  std::vector<std::pair<std::string, int>> axes{{"dp", world_size / size(options_.inner())}};
  if (options_.pp_size > 1)
    axes.insert(options_.dp_outside ? axes.end() : axes.begin(), {"pp", size(options_.pp_size)});
  if (options_.sp() > 1) axes.emplace_back("sp", size(options_.sp()));
  axes.emplace_back("tp", size(options_.tp_size));
  return axes;
}

/// Ranks that share the tokens of a sample each have a part of every gradient, like ranks that share samples.
zero::GradGroups HybridParallel::grad_groups(comm::Mesh& mesh) const {
  const std::vector<std::string> axes{"dp", "sp"};
  const auto& everyone = mesh.group(axes);
  const auto alone = comm::Group::alone("dp", mesh.world().rank(), nullptr);
  if (options_.zero_stage == 0) return {alone, everyone, everyone};
  return {everyone, alone, everyone, axes};
}

/// The cross-entropy of logits that are sharded over the ranks; null if the loss takes none, or the policy names none.
static nn::CrossEntropy parallel_cross_entropy(const ModelSource& source, const comm::Group& tp) {
  const auto classes = shardformer::classes_of(*source.model, source.policy);
  if (!source.sharded_logits || classes < 2) return {};
  return [classes, tp](const at::Tensor& logits, const at::Tensor& labels, double smoothing) {
    // A rank's part of two or more classes never has all of them; an evaluation makes complete logits.
    return logits.size(-1) != classes ? shardformer::label_parallel_loss(logits, labels, smoothing, classes, tp)
                                      : nn::cross_entropy(logits, labels, smoothing);
  };
}

/// The cost of each block; empty: all are equal. Collective if they are timed.
std::vector<double> HybridParallel::block_costs(const ModelSource& source, const BoostOptions& options,
                                                comm::Mesh& mesh) const {
  const auto& by = options_.pp_partition;
  if (options_.pp_size == 1 || !options_.num_layers_per_stage.empty() || by == "uniform") return {};
  if (by == "parameters") return pipeline::parameter_costs(*source.model);
  const auto example = source.example ? source.example() : nn::NamedTensors();
  if (example.empty())
    throw ConfigError(
        fmt::format("plugin.hybrid_parallel.pp_partition: \"{}\" runs the blocks with a sample, but there is none; "
                    "choose \"uniform\" or \"parameters\"",
                    by));
  pipeline::ProfileConfig config{.device = mesh.world().device()};
  if (by == "flops") return pipeline::flop_costs(*source.model, example, config, mesh.world().group());
  config.samples = micro_batch(options.train.micro_batch, share_of(options.train, mesh.group("dp").size()));
  config.dtype = Precision::pure(options.train.precision).parameters;
  return pipeline::time_costs(*source.model, example, config, mesh.world().group());
}

BoostResult HybridParallel::boost(ModelSource source, const BoostOptions& given, comm::Mesh& mesh, const Log& log) {
  const auto options = with_section(*this, options_, given);
  const auto &pp = mesh.group("pp"), &tp = mesh.group("tp");
  shardformer::ParallelGroups cut{tp, options_.mode(), mesh.group("sp"), false, options_.overlap()};
  const auto why = validate(source, cut.sizes());
  if (!why.text.empty()) throw ConfigError(fmt::format("plugin.hybrid_parallel.{}: {}", why.key, why.text));
  auto stage_choice = this->stage_choice();
  stage_choice.costs = block_costs(source, options, mesh);  // before the model is sharded
  if (tp.size() * pp.size() > 1) agree_on_values(*source.model, mesh.world().group(), mesh.world().device());
  nn::CrossEntropy cross_entropy;
  if (tp.size() > 1 || options_.mode() != Sequence::none) {
    if (options_.parallel_output && tp.size() > 1) cross_entropy = parallel_cross_entropy(source, tp);
    cut.parallel_loss = cross_entropy != nullptr;
    shardformer::apply(*source.model, source.policy, cut);
  }
  ShardedPlan plan{.stage = static_cast<int>(options_.zero_stage),
                   .bucket_mi = options_.zero_bucket_size_in_m,
                   .counts_loss = mesh.coordinate("sp") == 0,
                   .norm_axes = {"pp", "tp"}};
  if (options_.zero_stage > 0) plan.norm_axes = {"dp", "pp", "sp", "tp"};
  const auto groups = grad_groups(mesh);
  StagePlan stages;
  if (pp.size() > 1) stages = plan_stages(*source.model, stage_choice, pp.size(), pp.rank());
  const auto recomputed =
      recomputed_blocks(nullptr, options_, pp.size() > 1 ? stages.stages : stages_of(*source.model));
  const auto kernels = choose_kernels(*source.model, options_, options_.mode(),
                                      Precision::pure(options.train.precision).parameters, mesh.world().device());
  const auto finish = [&](zero::ShardedModel& model) {
    model.recompute_only(recomputed);
    if (!kernels.empty()) model.note(kernels);
  };
  if (pp.size() == 1) {
    auto [model, optimizer] = boost_sharded(source, options, options_, plan, groups, mesh, log);
    finish(*model);
    return {std::move(model), std::move(optimizer), std::move(cross_entropy)};
  }
  keep_stages(*source.model, stages, pp.axis());
  plan.gradient_group_of = gradient_groups(*source.model, stages);
  plan.deferred_group = stages.deferred_group();
  auto [model, optimizer] = boost_sharded(source, options, options_, plan, groups, mesh, log);
  finish(*model);
  const auto loss_type = Precision::parse(options.train.precision).loss;
  return {std::make_unique<PipelinedModel>(std::move(model), std::move(stages), loss_type, mesh), std::move(optimizer),
          std::move(cross_entropy)};
}

}  // namespace trireme::plugins

TRIREME_PLUGIN(trireme::plugins::HybridParallel)
