#include "plugins/hybrid_parallel/options.h"

#include "core/base/text.h"

namespace trireme::plugins {
namespace {

using shardformer::Sequence;
using O = HybridParallelOptions;

const std::vector<std::pair<std::string, Sequence>>& modes() {
  static const std::vector<std::pair<std::string, Sequence>> all{{"split_gather", Sequence::split_gather},
                                                                 {"ring", Sequence::ring},
                                                                 {"all_to_all", Sequence::all_to_all},
                                                                 {"ring_attn", Sequence::ring_attn}};
  return all;
}

void add_tensor_options(Fields<O>& rows) {
  rows.add("tp_size", &O::tp_size,
           "Number of tensor-parallel ranks, neighbours in rank order, over which attention heads, the MLP's width and "
           "the classes are split. Sizes need not divide evenly. Short form: parallel.tp.",
           {.min = 1, .max = 4096})
      .add("parallel_output", &O::parallel_output,
           "true: in training the logits stay split over the tensor-parallel ranks, and the loss is computed in "
           "parallel, which sends four numbers per label. false: the logits are gathered, unless the head of a "
           "language model "
           "computes the loss without them.")
      .add("sp_size", &O::sp_size,
           "Number of ranks over which the tokens of each sample are split. The modes split_gather and ring use the "
           "tensor-parallel ranks, and do not need this key; all_to_all and ring_attn use sp_size ranks in addition. "
           "Short form: parallel.sp.",
           {.min = 1, .max = 4096})
      .add("sequence_parallelism_mode", &O::sequence_parallelism_mode,
           "How tokens are split. split_gather: between tensor-parallel layers; ring: the same, with communication in "
           "steps that overlap with the matrix products; all_to_all: in all layers, attention is split by heads; "
           "ring_attn: in all layers, keys and values travel around a ring. Unset: no sequence parallelism. Short "
           "form: parallel.sp_mode.",
           {.choices = text::keys_of(modes())})
      .add("enable_sequence_parallelism", &O::enable_sequence_parallelism,
           "Whether sequence parallelism is used. Unset: yes if sequence_parallelism_mode is set.")
      .add("enable_sequence_overlap", &O::enable_sequence_overlap,
           "Overlap the communication of split_gather, ring and ring_attn with matrix products. Unset: true.");
}

void add_pipeline_options(Fields<O>& rows) {
  rows.add("pp_size", &O::pp_size,
           "Number of ranks in a pipeline. Each runs a part of the model's blocks. Short form: parallel.pp.",
           {.min = 1, .max = 4096})
      .add("pp_style", &O::pp_style,
           "The pipeline schedule. interleaved and zbv give each rank several stages; zb_h1 and zbv (zero bubble) "
           "delay weight gradients to fill idle time. Short form: parallel.schedule.",
           {.choices = pipeline::all_schedules().names()})
      .add("num_model_chunks", &O::num_model_chunks,
           "Stages per rank, for a schedule that can have more than its own number: interleaved. Unset: 2 for "
           "interleaved.",
           {.min = 1, .max = 4096})
      .add("num_microbatches", &O::num_microbatches,
           "Number of microbatches into which a rank's share of the global batch is split; takes precedence over "
           "microbatch_size. Unset, with a pipeline and without microbatch_size: four times pp_size, or one per sample "
           "if there are fewer samples.",
           {.min = 1, .max = 1e9})
      .add("microbatch_size", &O::microbatch_size, "Samples per microbatch; the same as train.micro_batch.",
           {.min = 1, .max = 1e9})
      .add("num_layers_per_stage", &O::num_layers_per_stage,
           "Number of blocks of each stage in forward order, the first (embeddings) and the last (head) included. "
           "Empty: chosen by pp_partition.",
           {.min = 1, .max = 1e6})
      .add("pp_partition", &O::pp_partition,
           "How blocks are distributed over the stages. flops: by the operations of a forward pass; timed: by the time "
           "of each block, measured before the first step; parameters: by their number of parameters; uniform: the "
           "same number of blocks, one more in the middle stages if needed.",
           {.choices = {"flops", "timed", "parameters", "uniform"}})
      .add("dp_outside", &O::dp_outside,
           "true: the rank order is dp x pp x sp x tp; false: pp x dp x sp x tp, which puts data-parallel ranks closer "
           "together.");
}

void add_zero_options(Fields<O>& rows) {
  rows.add("zero_stage", &O::zero_stage,
           "ZeRO stage over the data-parallel ranks: 0 partitions nothing, 1 optimizer state, 2 gradients as well, 3 "
           "weights as well, which are gathered block by block. Short form: parallel.zero.",
           {.min = 0, .max = 3})
      .add("zero_bucket_size_in_m", &O::zero_bucket_size_in_m,
           "Size of a gradient bucket in units of 2^20 elements. Unset: 12, or an eighth of the rank's parameters if "
           "that is smaller. With zero_stage = 3: the size of a chunk, as chunk_config is in elements.",
           {.max = 1e6, .above = 0})
      .add("extra_dp_size", &O::extra_dp_size, kExtraDpSizeText,
           {.min = 1, .only = OnlyWith{"zero_stage", {"1", "2", "3"}}})
      .add("check_reduction", &O::check_reduction, kCheckReductionText, {.only = OnlyWith{"zero_stage", {"0"}}});
  add_zero3_options(rows, OnlyWith{"zero_stage", {"3"}});
}

void check_sequence(const O& o, const CheckedSection& section) {
  const bool on = mode_of(o) != Sequence::none;
  const auto refuse = [&](bool wrong, const char* key, const std::string& why) {
    if (wrong) section.fail(key, why);
  };
  const auto names = text::join(text::keys_of(modes()));
  const char* const kMode = "sequence_parallelism_mode";
  refuse(o.enable_sequence_parallelism.value_or(on) && !on, "enable_sequence_parallelism",
         fmt::format("is true, but no mode is set; set {} to one of {}", kMode, names));
  refuse(!o.enable_sequence_parallelism.value_or(on) && on, "enable_sequence_parallelism",
         fmt::format("is false, but {} is \"{}\"; set only one of the two", kMode,
                     o.sequence_parallelism_mode.value_or("")));
  refuse(o.sp_size.value_or(1) > 1 && !on, "sp_size",
         fmt::format("{} ranks would share each sample, but no mode is set; set {} to one of {}", o.sp_size.value_or(1),
                     kMode, names));
  refuse(o.enable_sequence_overlap && !on, "enable_sequence_overlap",
         fmt::format("has no effect without sequence parallelism; remove it, or set {}", kMode));
  if (!on) return;
  refuse(o.enable_sequence_overlap && !shardformer::overlaps(mode_of(o)), "enable_sequence_overlap",
         "has no effect: all_to_all has no computation to overlap with; remove it");
  if (!shardformer::reuses_tensor(mode_of(o)))
    return refuse(o.sp_size.value_or(1) == 1, kMode, "has no effect with sp_size = 1; set sp_size to 2 or more");
  refuse(o.tp_size == 1, kMode,
         "splits the tokens over the tensor-parallel ranks, but tp_size is 1; set tp_size to 2 or more, or choose a "
         "mode that uses sp_size");
  refuse(o.sp_size.value_or(o.tp_size) != o.tp_size, "sp_size",
         fmt::format("{} reuses the {} ranks of tp_size; remove sp_size, or set it to {}",
                     o.sequence_parallelism_mode.value_or(""), o.tp_size, o.tp_size));
}

void check_stage3(const O& o, const CheckedSection& section) {
  const auto refuse = [&](bool wrong, const char* key, const std::string& why) {
    if (wrong) section.fail(key, why);
  };
  refuse(o.zero_bucket_size_in_m && o.chunk_config, "chunk_config",
         "conflicts with zero_bucket_size_in_m, which is the size of a chunk too; set only one of them");
  refuse(o.overlap_allgather && o.max_prefetch > 0, "max_prefetch",
         "conflicts with overlap_allgather = true, which is max_prefetch = 1; set only one of them");
  const bool is_auto = o.placement_policy == "auto";
  refuse(o.cpu_offload && (is_auto || o.offload_optim_frac > 0), "cpu_offload",
         fmt::format("is offload_optim_frac = 1, but {}; remove one of them",
                     is_auto ? std::string("placement_policy = \"auto\" decides what is offloaded")
                             : fmt::format("offload_optim_frac is {}", o.offload_optim_frac)));
  refuse(is_auto && o.pp_size > 1, "placement_policy",
         "\"auto\" measures one forward and backward pass, but a pipeline has several microbatches under way at once; "
         "choose \"static\"");
  refuse(!o.memstats.empty() && o.tp_size > 1, "memstats",
         "holds the measurements of one set of chunks, but each tensor-parallel rank has another; remove it");
  check_zero3_keys(section, zero3_of(o), hybrid_parallel_fields(), &o,
                   o.zero_bucket_size_in_m ? "zero_bucket_size_in_m" : "chunk_config");
}

}  // namespace

static void add_absent_keys(Fields<O>& rows) {
  rows.instead("ddp_bucket_cap_mb", "gradients are reduced in buckets of zero_bucket_size_in_m, with any zero_stage")
      .instead("find_unused_parameters", "parameters that a step does not use are found in every step, without a key")
      .instead("static_graph", "unused parameters cost nothing to find, so there is nothing to gain; remove it")
      .instead("gradient_as_bucket_view", "gradients always go into the buckets as they are computed; remove it")
      .instead("custom_policy", "a program sets ModelSource::policy; built-in models have theirs")
      .instead("scheduler_nodes", "zbv makes its own schedule; remove it")
      .instead(
          "gradient_checkpoint_config",
          "set train.recompute = true, and train.recompute_ratio or train.recompute_layers_per_stage for a part of it")
      .instead("enable_metadata_cache", "the ranks agree on shapes once for each kind of input; remove it")
      .instead("make_vocab_size_divisible_by", "a vocabulary or a number of classes need not be divisible; remove it")
      .instead("overlap_p2p", "messages between stages always overlap with computation; remove it")
      .instead("inner_ring_size", "ring attention has one ring over all ranks of the axis; remove it")
      .instead("chunk_config_dict", kNoChunkConfigDictText)
      .instead("enable_async_reduce", "set overlap_communication, which is for every zero_stage");
}

const Fields<HybridParallelOptions>& hybrid_parallel_fields() {
  static const auto table = [] {
    Fields<O> rows(
        "plugin.hybrid_parallel",
        std::string(
            "Tensor, sequence and pipeline parallelism, with data parallelism and ZeRO over the other ranks: ranks "
            "= dp x pp x sp x tp.") +
            kTrainKeysText);
    add_tensor_options(rows);
    add_pipeline_options(rows);
    add_zero_options(rows);
    add_sharded_options(rows, /*stage3=*/true);
    add_absent_keys(rows);
    rows.rule(check_sequence).rule(check_stage3);
    return rows;
  }();
  return table;
}

Sequence mode_of(const HybridParallelOptions& o) {
  for (const auto& [name, mode] : modes())
    if (name == o.sequence_parallelism_mode) return mode;
  return Sequence::none;
}

std::int64_t sp_of(const HybridParallelOptions& o) {
  return mode_of(o) == Sequence::none || shardformer::reuses_tensor(mode_of(o)) ? 1 : o.sp_size.value_or(1);
}

Zero3Options zero3_of(const HybridParallelOptions& o) {
  Zero3Options keys = o;
  if (o.zero_bucket_size_in_m) keys.chunk_config = mebi(*o.zero_bucket_size_in_m);
  if (o.overlap_allgather) keys.max_prefetch = 1;
  if (o.cpu_offload) keys.offload_optim_frac = 1;
  return keys;
}

void check_pipeline(const config::Table* section, const HybridParallelOptions& o, const pipeline::Plan& plan,
                    const TrainOptions& train, std::int64_t share) {
  const auto changed = [&](const char* key) { return is_changed(hybrid_parallel_fields(), key, &o); };
  if (o.pp_size == 1)
    for (const char* key : {"pp_style", "num_model_chunks", "num_layers_per_stage", "pp_partition", "dp_outside"})
      if (changed(key))
        config::fail(section, key, "has no effect: there is no pipeline; remove it, or set pp_size to 2 or more");
  if (!o.num_layers_per_stage.empty() && changed("pp_partition"))
    config::fail(section, "pp_partition", "has no effect when num_layers_per_stage is set; set only one of them");
  const auto& wanted = train.micro_batch;
  if (wanted && o.microbatch_size.value_or(*wanted) != *wanted)
    config::fail(section, "microbatch_size",
                 fmt::format("is {}, but train.micro_batch is {}; set only one of them, or both to the same value",
                             *o.microbatch_size, *wanted));
  if (wanted && o.num_microbatches)
    config::fail(section, "num_microbatches",
                 fmt::format("conflicts with train.micro_batch ({}); set only one of them", *wanted));
  try {
    pipeline::make_schedule(plan, static_cast<int>(o.pp_size), 1);
  } catch (const ConfigError& error) {
    config::fail(section, o.num_model_chunks ? "num_model_chunks" : "pp_style", error.what());
  }
  if (o.num_microbatches) {
    const auto why = validate_microbatches(share, *o.num_microbatches);
    if (!why.empty()) config::fail(section, "num_microbatches", why);
  }
}

std::string validate_microbatches(std::int64_t share, std::int64_t parts) {
  const auto each = (share + parts - 1) / parts, made = (share + each - 1) / each;
  return made == parts ? ""
                       : fmt::format(
                             "{} samples per rank cannot be split into {} microbatches of equal size (the last may be "
                             "smaller); choose {}, or another train.global_batch",
                             share, parts, made);
}

}  // namespace trireme::plugins
