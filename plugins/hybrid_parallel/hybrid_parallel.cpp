// HybridParallel: tensor and sequence parallelism as the innermost axes, then pipeline parallelism, then data
// parallelism with ZeRO 0 to 3. Each rank runs some of the model's blocks (pipelined.h), whose layers are sharded by
// the model's policy (shardformer/apply.h). What a rank holds of them is then reduced, updated and partitioned over the
// data-parallel ranks (zero/sharded_model.h; with stage 3 zero/gemini/gathered_model.h).
//
//   ranks = dp x pp x sp x tp, with tp varying fastest: the ranks of a tensor-parallel group are neighbours. The
//   factor sp is 1 for the modes of sequence parallelism that reuse these ranks.
#include "core/base/text.h"
#include "core/booster/kernel_choice.h"
#include "core/booster/partial_recompute.h"
#include "core/booster/plugin.h"
#include "core/booster/plugin_entry.h"
#include "core/booster/precision.h"
#include "core/nn/block.h"
#include "core/nn/layers/chunked_cross_entropy.h"
#include "pipeline/block_costs.h"
#include "plugins/hybrid_parallel/options.h"
#include "plugins/hybrid_parallel/pipelined.h"
#include "shardformer/apply.h"
#include "shardformer/tensor/collectives.h"

namespace trireme::plugins {
namespace {

using shardformer::Sequence;

/// Why the source's model cannot be sharded over this number of ranks, and the key that requests it; "" when it can.
struct Problem {
  std::string text;
  const char* key = "tp_size";
};

std::string problem_of(const ModelSource& source, const shardformer::ParallelSizes& sizes,
                       const shardformer::Roles& roles) {
  if (sizes.tensor == 1 && sizes.mode == Sequence::none) return "";
  if (source.policy.empty())
    return "this model has no policy for tensor or sequence parallelism; use data, ZeRO or pipeline parallelism, with "
           "tp_size = 1 and no sequence_parallelism_mode (a C++ program can set ModelSource::policy)";
  return shardformer::validate(*source.model, source.policy, sizes, roles);
}

Problem validate(const ModelSource& source, const shardformer::ParallelSizes& sizes, const shardformer::Roles& roles) {
  if (auto text = problem_of(source, {sizes.tensor, Sequence::none, 1}, roles); !text.empty()) return {std::move(text)};
  const bool own = sizes.mode != Sequence::none && !shardformer::reuses_tensor(sizes.mode);
  return {problem_of(source, sizes, roles), own ? "sp_size" : "sequence_parallelism_mode"};
}

std::vector<std::int64_t> sizes_of(const std::vector<pipeline::Stage>& stages) {
  std::vector<std::int64_t> sizes;
  for (const auto& stage : stages) sizes.push_back(stage.size());
  return sizes;
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

/// "pp = 2 and tp = 2": the sizes above 1 of the axes other than data parallelism.
std::string taken(const comm::Axes& axes) {
  std::vector<std::string> sizes;
  for (const auto& [kind, size] : axes)
    if (size > 1 && !kind.splits_samples) sizes.push_back(fmt::format("{} = {}", kind.name, size));
  return text::join(sizes, " and ");
}

}  // namespace

class HybridParallel : public PluginOf<HybridParallelOptions> {
 public:
  HybridParallel() : PluginOf(hybrid_parallel_fields()) {}
  std::string summary() const override {
    return "Tensor, sequence and pipeline parallelism, combined with data parallelism and ZeRO stages 0 to 3.";
  }
  void set_kinds(const PluginKinds& kinds) override;
  void check(const RunSettings& run) const override;
  void check_model(const ModelSource& source, const RunSettings& run) const override;
  /// {"dp_outer", extra_dp_size} if above 1, {"dp", the remaining ranks}, {"pp", pp_size}, {"sp", sp_size} if it has a
  /// separate axis, {"tp", tp_size}; with dp_outside = false, pp is before dp.
  comm::Axes axes(int world_size) const override;
  std::int64_t micro_batch(std::optional<std::int64_t> wanted, std::int64_t share) const override;
  BoostResult boost(ModelSource source, const BoostOptions& options, comm::Mesh& mesh, const Log& log) override;

 private:
  std::vector<double> block_costs(const ModelSource& source, const BoostOptions& options, comm::Mesh& mesh) const;
  /// The schedule that the options name.
  [[nodiscard]] pipeline::Plan plan() const {
    return {options_.pp_style, static_cast<int>(options_.num_model_chunks.value_or(0)), kinds_.pipeline_schedules};
  }
  /// Makes the schedule for each number of microbatches that a step can have: the last one of an epoch may have fewer,
  /// and an evaluation has one for each rank. Others than the full step's only up to 128: the executor proves what it
  /// runs. @throws ConfigError when the schedule is wrong for one of them
  void prove_schedule(const config::Table* section, const TrainOptions& train, std::int64_t share) const;
  /// The options of the partition into stages, without block costs.
  [[nodiscard]] pipeline::StageChoice stage_choice() const { return {plan(), options_.num_layers_per_stage}; }
  /// The number of microbatches in a step of one data-parallel rank, which is the largest possible.
  [[nodiscard]] std::int64_t microbatches_of_all(const TrainOptions& train) const;
  /// The stages of all ranks; one stage without a pipeline.
  [[nodiscard]] std::vector<pipeline::Stage> stages_of(nn::Model& model) const;
  PluginKinds kinds_{};
};

void HybridParallel::check(const RunSettings& run) const {
  const auto* section = run.section;
  const auto world_size = run.world_size;
  const auto& o = options_;
  check_sharded_options(section, o, run.train.precision);
  check_zero3(section, zero3_of(o), run, microbatches_of_all(run.train));
  if (run.train.kernels.enable_all_optimization && !overlaps_sequence(o))
    config::fail(section, "enable_sequence_overlap",
                 "is false, but enable_all_optimization = true turns it on; remove one of the two");
  if (world_size % inner_of(o) != 0) {
    const char* key = o.tp_size > 1 ? "tp_size" : o.pp_size > 1 ? "pp_size" : "sp_size";
    config::fail(section, key,
                 fmt::format("ranks = dp x pp x sp x tp, but {} is not a multiple of {} ({}); start {} ranks, or "
                             "choose sizes whose product divides {}",
                             world_size, inner_of(o), taken(axes(world_size)),
                             (world_size / inner_of(o) + 1) * inner_of(o), world_size));
  }
  const auto dp = world_size / inner_of(o);
  // Gradients are summed over the data- and sequence-parallel ranks, and ZeRO partitions over them.
  const bool reduces = dp * sp_of(o) > 1 || world_size == 1;
  if (o.zero_stage > 0 && !reduces)
    config::fail(
        section, "zero_stage",
        fmt::format("has no effect: {} leaves no data-parallel ranks to partition over; remove it, or start {} ranks",
                    taken(axes(world_size)), 2 * world_size));
  check_replicas(section, o.extra_dp_size, dp, sp_of(o), "zero_stage = 0");
  if (o.overlap_allgather && o.zero_stage == 0)
    config::fail(section, "overlap_allgather",
                 "has no effect with zero_stage = 0, which gathers no weights; remove it, or set zero_stage");
  for (const char* key : {"communication_dtype", "overlap_communication", "check_reduction"})
    if (!reduces && is_changed(fields(), key, &o))
      config::fail(
          section, key,
          fmt::format(
              "has no effect: {} leaves no data-parallel ranks to reduce gradients over; remove it, or start {} ranks",
              taken(axes(world_size)), 2 * world_size));
  if (o.tp_size == 1 && !o.parallel_output)
    config::fail(section, "parallel_output", "has no effect: tp_size is 1, so logits are not split; remove it");
  if (dp == 1 && !o.dp_outside)
    config::fail(section, "dp_outside", "has no effect: there are no data-parallel ranks; remove it");
  if (!run.train.recompute_layers_per_stage.empty() && !knows_stages(o))
    throw ConfigError(
        fmt::format("train.recompute_layers_per_stage: counts blocks per stage, but pp_partition = \"{}\" chooses the "
                    "stages at run time; set num_layers_per_stage too, or use recompute_ratio instead",
                    o.pp_partition));
  const auto share = share_of(run.train, static_cast<int>(dp));
  check_pipeline(section, o, plan(), run.train, share);
  prove_schedule(section, run.train, share);
}

void HybridParallel::set_kinds(const PluginKinds& kinds) {
  kinds_ = kinds;
  for (auto& field : fields_.fields)
    if (field.key == "pp_style") field.rules.choices = kinds.pipeline_schedules.names();
}

void HybridParallel::prove_schedule(const config::Table* section, const TrainOptions& train, std::int64_t share) const {
  if (options_.pp_size == 1) return;
  constexpr std::int64_t kAll = 128;  // proving the numbers up to m takes a time that grows with m squared
  const auto size = micro_batch(train.micro_batch, share);
  const auto most = std::max(options_.pp_size, (share + size - 1) / size);
  const auto prove = [this, plan = plan()](std::int64_t count) {
    pipeline::make_schedule(plan, static_cast<int>(options_.pp_size), static_cast<int>(count));
  };
  try {
    prove(most);
    for (auto count = std::min(most - 1, kAll); count > 0; --count) prove(count);
  } catch (const ConfigError& error) {
    config::fail(section, "pp_style", error.what());
  }
}

void HybridParallel::check_model(const ModelSource& source, const RunSettings& run) const {
  const auto* section = run.section;
  const auto& o = options_;
  const auto why =
      validate(source, {static_cast<int>(o.tp_size), mode_of(o), static_cast<int>(sp_of(o))}, kinds_.roles);
  if (!why.text.empty()) config::fail(section, why.key, why.text);
  if (o.tp_size > 1 && !o.parallel_output && shardformer::classes_of(*source.model, source.policy, kinds_.roles) == 0)
    config::fail(section, "parallel_output",
                 "has no effect: the policy gives no layer the role classifier_head or tied_embedding; remove it");
  auto own = run;
  own.train = with_own_options(*this, run.train);
  const auto& kernels = own.train.kernels;
  if (mode_of(o) == Sequence::ring_attn && (kernels.enable_flash_attention || kernels.attention_kernel))
    throw ConfigError(
        fmt::format("train.{}: has no effect: ring_attn uses its own attention, which never materializes all scores; "
                    "remove it",
                    kernels.attention_kernel ? "attention_kernel" : "enable_flash_attention"));
  check_kernels(*source.model, own);
  std::vector<pipeline::Stage> stages;
  try {
    stages = stages_of(*source.model);
  } catch (const ConfigError& error) {
    const char* key = o.num_model_chunks ? "num_model_chunks" : "pp_size";
    config::fail(section, o.num_layers_per_stage.empty() ? key : "num_layers_per_stage", error.what());
  }
  check_recompute(*source.model, own, knows_stages(o) ? sizes_of(stages) : std::vector<std::int64_t>());
}

std::int64_t HybridParallel::microbatches_of_all(const TrainOptions& train) const {
  if (options_.num_microbatches) return *options_.num_microbatches;
  const auto size = micro_batch(train.micro_batch, train.global_batch);
  return (train.global_batch + size - 1) / size;
}

std::vector<pipeline::Stage> HybridParallel::stages_of(nn::Model& model) const {
  const auto ranks = static_cast<int>(options_.pp_size);
  if (ranks == 1) return {{0, static_cast<std::int64_t>(model.blocks().size())}};
  return pipeline::plan_stages(model, stage_choice(), ranks, 0).stages;
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

comm::Axes HybridParallel::axes(int world_size) const {
  const auto size = [](std::int64_t n) { return static_cast<int>(n); };
  auto axes = zero_axes(options_.extra_dp_size, world_size / inner_of(options_));
  if (options_.pp_size > 1)
    axes.insert(options_.dp_outside ? axes.end() : axes.begin(), {"pp", size(options_.pp_size)});
  if (sp_of(options_) > 1) axes.emplace_back("sp", size(sp_of(options_)));
  axes.emplace_back("tp", size(options_.tp_size));
  return axes;
}

/// How to use logits that are sharded over the ranks; empty if the loss takes none, or the policy names none.
static ShardedLogits sharded_logits_of(const ModelSource& source, const shardformer::Roles& roles,
                                       const comm::Group& tp) {
  const auto classes = shardformer::classes_of(*source.model, source.policy, roles);
  if (!source.sharded_logits || classes < 2) return {};
  // With two or more classes a rank's part is never complete, so the size of the last dim shows what the logits are.
  return {
      .cross_entropy =
          [classes, tp](const at::Tensor& logits, const at::Tensor& labels, const nn::CrossEntropyOptions& options) {
            return logits.size(-1) != classes ? nn::chunked_cross_entropy(logits, labels, options, classes, &tp)
                                              : nn::cross_entropy(logits, labels, options);
          },
      .gather =
          [classes, tp](const at::Tensor& logits) {
            return logits.size(-1) != classes ? shardformer::gather_last_dim(logits, classes, 1, tp) : logits;
          }};
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
  config.samples = micro_batch(options.train.micro_batch,
                               share_of(options.train, mesh.group(&comm::AxisKind::splits_samples).size()));
  config.dtype = Precision::pure(options.train.precision).parameters;
  return pipeline::time_costs(*source.model, example, config, mesh.world().group());
}

BoostResult HybridParallel::boost(ModelSource source, const BoostOptions& given, comm::Mesh& mesh, const Log& log) {
  const auto options = with_section(*this, options_, given);
  const auto &pp = mesh.group("pp"), &tp = mesh.group("tp");
  shardformer::ParallelGroups cut{tp, mode_of(options_), mesh.group("sp"), false, overlaps_sequence(options_)};
  const auto why = validate(source, cut.sizes(), kinds_.roles);
  if (!why.text.empty()) throw ConfigError(fmt::format("plugin.hybrid_parallel.{}: {}", why.key, why.text));
  prove_schedule(nullptr, options.train,  // a program has not called check()
                 share_of(options.train, mesh.group(&comm::AxisKind::splits_samples).size()));
  auto stage_choice = this->stage_choice();
  stage_choice.costs = block_costs(source, options, mesh);  // before the model is sharded
  if (tp.size() * pp.size() > 1) agree_on_values(*source.model, mesh.world().group(), mesh.world().device());
  ShardedLogits sharded_logits;
  if (tp.size() > 1 || mode_of(options_) != Sequence::none) {
    if (options_.parallel_output && tp.size() > 1) sharded_logits = sharded_logits_of(source, kinds_.roles, tp);
    cut.parallel_loss = sharded_logits.cross_entropy != nullptr;
    shardformer::apply(*source.model, source.policy, cut, kinds_.roles);
  }
  const auto zero3 = zero3_of(options_);
  ShardedPlan plan{.stage = static_cast<int>(options_.zero_stage),
                   .bucket_mi = options_.zero_bucket_size_in_m,
                   .zero3 = &zero3,
                   .hold_gradients = options_.enable_gradient_accumulation,
                   .check_reduction = options_.check_reduction};
  pipeline::StagePlan stages;
  std::vector<bool> recomputed;
  std::string kernels;
  const bool staged = pp.size() > 1;
  if (staged) {
    stages = pipeline::plan_stages(*source.model, stage_choice, pp.size(), pp.rank());
    recomputed = recomputed_blocks(options.train, sizes_of(stages.stages));
    kernels =
        choose_kernels(*source.model, options.train, Precision::pure(options.train.precision), mesh.world().device());
    pipeline::keep_stages(*source.model, stages, pp.axis());
    plan.gradient_group_of = pipeline::gradient_groups(*source.model, stages);
    plan.deferred_group = stages.deferred_group();
  }
  auto [model, optimizer] = boost_sharded(*this, source, options, options_, plan, mesh, log);
  if (staged) model->recompute_only(recomputed);
  if (!kernels.empty()) model->note(kernels);
  if (!overlaps_sequence(options_)) model->note("sequence-parallel communication is not overlapped");
  BoostResult result{.optimizer = std::move(optimizer),
                     .sharded_logits = std::move(sharded_logits),
                     .broadcasts_buffers = options_.broadcast_buffers,
                     .reads_inputs = pp.rank() == 0};
  const auto loss_type = Precision::parse(options.train.precision).loss;
  if (staged)
    result.model = std::make_unique<PipelinedModel>(std::move(model), std::move(stages), loss_type, mesh);
  else
    result.model = std::move(model);
  return result;
}

}  // namespace trireme::plugins

TRIREME_PLUGIN(trireme::plugins::HybridParallel)
