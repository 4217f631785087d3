#include "plugins/hybrid_parallel/options.h"

#include "core/base/text.h"
#include "pipeline/schedule/schedules.h"

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

std::vector<std::string> mode_names() {
  std::vector<std::string> names;
  for (const auto& [name, mode] : modes()) names.push_back(name);
  return names;
}

void add_tensor_options(Fields<O>& rows) {
  rows.add("tp_size", &O::tp_size,
           "So many ranks, neighbours, share each layer: attention heads, the MLP's width, the classes. Sizes "
           "need not divide evenly. Short: parallel.tp.",
           {.min = 1, .max = 65536})
      .add("parallel_output", &O::parallel_output,
           "In training, logits stay cut over the ranks of tp_size, and the loss is computed of them so: four "
           "numbers a sample are sent. false: the logits are gathered, as for a program's own loss.")
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
           "Whether tokens are shared out. Unset: when sequence_parallelism_mode says how.");
}

void add_pipeline_options(Fields<O>& rows) {
  rows.add("pp_size", &O::pp_size,
           "So many ranks run the model's blocks one after the other, each its own. Short: parallel.pp.",
           {.min = 1, .max = 4096})
      .add("pp_style", &O::pp_style,
           "The order in which a pipeline's ranks take the microbatches. interleaved and zbv give each rank "
           "several stages; zb_h1 and zbv put off weight gradients to where a rank would wait. Short: "
           "parallel.schedule.",
           {.choices = pipeline::schedule_names()})
      .add("num_model_chunks", &O::num_model_chunks, "interleaved: stages on each rank. Unset: 2.",
           {.min = 1, .max = 4096})
      .add("num_microbatches", &O::num_microbatches,
           "Into so many parts a rank's share of the global batch is cut; wins over microbatch_size. Unset, with "
           "a pipeline and no other word on it: four times pp_size, or one a sample.",
           {.min = 1, .max = 1e9})
      .add("microbatch_size", &O::microbatch_size, "The same as train.micro_batch: samples of each part.",
           {.min = 1, .max = 1e9})
      .add("num_layers_per_stage", &O::num_layers_per_stage,
           "Blocks of each stage, in forward order, the first (embeddings) and the last (head) counted. Empty: by "
           "pp_partition.",
           {.min = 1, .max = 1e6})
      .add("pp_partition", &O::pp_partition,
           "What stages have as much of as can be: flops: a sample's forward operations; timed: seconds, each "
           "block tried before the first step; parameters; uniform: blocks, those in the middle one more.",
           {.choices = {"flops", "timed", "parameters", "uniform"}})
      .add("dp_outside", &O::dp_outside,
           "Order of the ranks: dp x pp x sp x tp; false: pp x dp x sp x tp, where data-parallel ranks are "
           "closer.");
}

void add_zero_options(Fields<O>& rows) {
  rows.add("zero_stage", &O::zero_stage,
           "Over the data-parallel ranks: 0 shares out nothing, 1 the optimizer's state, 2 the gradients too, 3 "
           "the weights too, gathered block by block. Short: parallel.zero.",
           {.min = 0, .max = 3})
      .add("zero_bucket_size_in_m", &O::zero_bucket_size_in_m,
           "Size of a gradient bucket, in units of 2^20 elements. Unset: 12, or an eighth of what a rank holds if "
           "that is smaller than 96. zero_stage = 3: of a chunk of weights, which ends with its block too.",
           {.max = 1e6, .above = 0});
}

}  // namespace

const Fields<HybridParallelOptions>& hybrid_parallel_fields() {
  static const auto table = [] {
    Fields<O> rows(
        "plugin.hybrid_parallel",
        "Tensor, sequence and pipeline parallelism, and data parallelism with ZeRO over what they leave: ranks "
        "= dp x pp x sp x tp. Keys that [train] has too may be written in either; the loss scale's in the one "
        "that says fp16.");
    add_tensor_options(rows);
    add_pipeline_options(rows);
    add_zero_options(rows);
    add_kernel_options(rows);
    add_recompute_options(rows);
    add_sharded_options(rows, /*stage3=*/true);
    return rows;
  }();
  return table;
}

Sequence HybridParallelOptions::mode() const {
  for (const auto& [name, mode] : modes())
    if (name == sequence_parallelism_mode) return mode;
  return Sequence::none;
}

std::int64_t HybridParallelOptions::sp() const {
  return mode() == Sequence::none || shardformer::reuses_tensor(mode()) ? 1 : sp_size.value_or(1);
}

void check_sequence(const config::Table* section, const HybridParallelOptions& o) {
  const bool on = o.mode() != Sequence::none;
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
  if (!shardformer::reuses_tensor(o.mode()))
    return refuse(o.sp_size.value_or(1) == 1, kMode, "changes nothing with sp_size = 1; set sp_size to 2 or more");
  refuse(o.tp_size == 1, kMode,
         "shares out the tokens over the tensor-parallel ranks, and tp_size is 1; set tp_size to 2 or more, or choose "
         "a mode with ranks of its own and sp_size");
  refuse(o.sp_size.value_or(o.tp_size) != o.tp_size, "sp_size",
         fmt::format("{} reuses the {} ranks of tp_size; leave sp_size out, or set it to {}",
                     o.sequence_parallelism_mode.value_or(""), o.tp_size, o.tp_size));
}

void check_pipeline(const config::Table* section, const HybridParallelOptions& o, const config::TrainOptions& train,
                    std::int64_t share) {
  const auto changed = [&](const char* key) { return is_changed(hybrid_parallel_fields(), key, &o); };
  if (o.pp_size == 1)
    for (const char* key : {"pp_style", "num_model_chunks", "num_layers_per_stage", "pp_partition", "dp_outside"})
      if (changed(key))
        config::fail(section, key, "changes nothing: there is no pipeline; remove it, or set pp_size to 2 or more");
  if (!o.num_layers_per_stage.empty() && changed("pp_partition"))
    config::fail(section, "pp_partition", "changes nothing beside num_layers_per_stage; leave one");
  const auto& wanted = train.micro_batch;
  if (wanted && o.microbatch_size.value_or(*wanted) != *wanted)
    config::fail(section, "microbatch_size",
                 fmt::format("is {}, and train.micro_batch is {}; say it once, or alike", *o.microbatch_size, *wanted));
  if (wanted && o.num_microbatches)
    config::fail(section, "num_microbatches",
                 fmt::format("and train.micro_batch ({}) say the same thing in two ways; leave one", *wanted));
  try {
    pipeline::make_schedule(o.pp_style, static_cast<int>(o.pp_size), o.chunks(), 1);
  } catch (const ConfigError& error) {
    config::fail(section, "num_model_chunks", error.what());
  }
  if (o.num_microbatches) {
    const auto why = why_not_parts(share, *o.num_microbatches);
    if (!why.empty()) config::fail(section, "num_microbatches", why);
  }
}

std::string why_not_parts(std::int64_t share, std::int64_t parts) {
  const auto each = (share + parts - 1) / parts, made = (share + each - 1) / each;
  return made == parts ? ""
                       : fmt::format(
                             "{} samples a rank cannot be {} parts that are alike but for the last; choose {}, "
                             "or another train.global_batch",
                             share, parts, made);
}

}  // namespace trireme::plugins
