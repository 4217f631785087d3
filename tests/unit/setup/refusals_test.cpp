// Every rule that spans several keys, or a key and the number of ranks. A violation is refused with the key and the
// remedy, by one process that checks for all ranks: here, what that process calls. tests/failure/refusals_test.cpp has
// the way from there to the user.
#include <fstream>
#include <nlohmann/json.hpp>
#include <tuple>

#include "core/booster/plugin_loader.h"
#include "models/vit/kind.h"
#include "tests/unit/datasets/folder.h"
#include "tests/unit/train/small_run.h"

namespace trireme::train {
namespace {

struct RefusedRow {
  std::vector<std::string> sets;
  std::string says;
  int ranks = 8;
  ExitCode code = ExitCode::config;
};

class Refusals : public testing::Test {
 protected:
  /// `before`: assignments of all rows, which come before theirs.
  void expect_refused(const std::vector<RefusedRow>& rows, const std::vector<std::string>& before = {},
                      const Kinds& kinds = builtin_kinds()) const {
    const auto text = testing_tools::kModelAndData + "[run]\ndir = \"" + dir() +
                      "\"\ndevice = \"cpu\"\n[train]\nepochs = 1\nglobal_batch = 8\n";
    for (const auto& [sets, says, ranks, code] : rows) {
      SCOPED_TRACE(sets.front());
      auto all = before;
      all.insert(all.end(), sets.begin(), sets.end());
      try {
        check_run(testing_tools::setup_of(text, all, ranks, "", kinds));
        ADD_FAILURE() << "accepted; expected: " << says;
      } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find(says), std::string::npos) << error.what() << "\nexpected: " << says;
        EXPECT_EQ(error.code(), code);
      }
      EXPECT_FALSE(std::filesystem::exists(dir()));
    }
  }
  [[nodiscard]] std::string dir() const { return folder_.path("run"); }
  data::testing_tools::Folder folder_;
};

TEST_F(Refusals, OfTheFile) {
  const auto rule = [](std::vector<std::string> sets, const char* says) { return RefusedRow{std::move(sets), says}; };
  expect_refused({
      rule({"run.checkpoint_every=5", "run.keep_checkpoints=0"}, "has no effect, because keep_checkpoints = 0"),
      rule({"run.checkpoint_shard_mb=5", "run.keep_checkpoints=0"}, "has no effect, because keep_checkpoints = 0"),
      rule({"train.on_nonfinite=rollback", "run.keep_checkpoints=0"},
           "returns to a checkpoint, but run.keep_checkpoints = 0 keeps none"),
      rule({"train.on_loss_spike=stop"}, "has no effect without loss_spike"),
      rule({"data.path=somewhere", "data.images=60"}, "data.path names leaves that exist already"),
      rule({"data.path=somewhere", "data.leaf_seed=3"}, "data.path names leaves that exist already"),
      rule({"data.on_bad_sample=skip"}, "has no effect with leaves that are generated in memory"),
      rule({"data.image_size=12"},
           "data.image_size=12: the longer side of generated leaves must have 16 to 4096 pixels; choose another size"),
      rule({"data.image_size=[5000, 32]"}, "the longer side of generated leaves must have 16 to 4096 pixels"),
      rule({"data.random_resized_crop=true", "data.crop_scale=[0.9, 0.1]"}, "must be the smaller fraction first"),
      rule({"data.crop_scale=[0.5, 1.0]"}, "has no effect with random_resized_crop = false"),
      rule({"train.micro_batch=9"}, "train.micro_batch=9: is more than global_batch = 8"),
      rule({"train.min_scale=4"}, "has no effect with precision = \"fp32\""),
      rule({"train.precision=fp16", "train.initial_scale=2", "train.min_scale=4"}, "breaks min_scale <= initial_scale"),
      rule({"train.precision=fp16", "train.max_scale=4"}, "breaks initial_scale <= max_scale"),
      rule({"train.recompute_ratio=0.5"}, "train.recompute_ratio=0.5: has no effect without recompute"),
      rule({"train.recompute=true", "train.recompute_ratio=0.5", "train.recompute_layers_per_stage=[1]"},
           "train.recompute_ratio=0.5: conflicts with recompute_layers_per_stage"),
      rule({"train.recompute=true", "train.recompute_layers_per_stage=[1, 1]"},
           "train.recompute_layers_per_stage=[1, 1]: 2 numbers for 1 stages; give one per stage"),
      rule({"train.recompute=true", "train.recompute_layers_per_stage=[4]"}, "stage 0 has 3 blocks; choose at most 3"),
      rule({"train.recompute_modules=[\"*.output\"]"},
           "train.recompute_modules=[\"*.output\"]: \"*.output\" matches no layer that can be recomputed by itself; "
           "this model has vit.encoder.layer.0.attention.attention, vit.encoder.layer.0.intermediate.dense"),
      rule({"train.recompute=true", "train.recompute_modules=[\"attention\"]"},
           "has no effect: train.recompute recomputes all blocks that have these layers"),
      rule({"train.offload_activations=true"}, "train.offload_activations=true: has no effect without recompute"),
      rule({"train.recompute=true", "train.offload_activations=true"}, "but this run computes on CPUs; remove it"),
      rule({"train.enable_all_optimization=true", "train.enable_fused_normalization=false"},
           "enable_fused_normalization=false: is false, but enable_all_optimization = true turns it on"),
      rule({"train.attention_kernel=flash", "train.enable_flash_attention=true"},
           "conflicts with enable_flash_attention; set only one of them"),
      rule({"train.attention_kernel=flsh"}, "did you mean \"flash\"?"),
      rule({"train.attention_kernel=memory_efficient"},
           "train.attention_kernel=memory_efficient: LibTorch has no memory_efficient attention for"),
      rule({"train.attention_kernel=flash", "model.attention_dropout=0.1"}, "is not possible with attention dropout"),
      rule({"optimizer.momentum=0.9"}, "has no effect with name = \"hybrid_adam\""),
      rule({"optimizer.name=sgd", "optimizer.eps=1e-3"}, "has no effect with name = \"sgd\""),
      rule({"optimizer.name=sgd", "optimizer.nesterov=true"}, "needs momentum above 0"),
      rule({"optimizer.name=sgd", "optimizer.momentum=0.9", "optimizer.nesterov=true", "optimizer.dampening=0.1"},
           "needs dampening = 0, not 0.1"),
      rule({"optimizer.name=sgd", "optimizer.dampening=0.1"}, "has no effect without momentum"),
      rule({"optimizer.freeze=[\"\"]"}, "holds an empty name"),
      rule({"optimizer.no_decay=[\"\"]", "optimizer.weight_decay=0.1"}, "holds an empty name"),
      rule({"optimizer.no_decay=[\"bias\"]"}, "has no effect while weight_decay is 0"),
      rule({"schedule.warmup_steps=2", "schedule.warmup_ratio=0.1"}, "; set only one of them"),
      rule({"schedule.name=step"}, "is required with name = \"step\""),
      rule({"schedule.name=multi_step"}, "are required with name = \"multi_step\""),
      rule({"schedule.name=multi_step", "schedule.milestones=[4, 4]"}, "must be in ascending order, each step once"),
      rule({"schedule.step_size=4"}, "has no effect with name = \"constant\""),
      rule({"schedule.name=one_cycle", "schedule.warmup_steps=2"}, "has no effect with name = \"one_cycle\""),
      rule({"parallel.plugin="}, "is empty; name a plugin"),
      rule({"plugin.torch_dpp.static_graph=true"}, "did you mean \"torch_ddp\"?"),
      rule({"parallel.zero=4"}, "parallel.zero=4: it must be at least 0 and at most 3"),
      rule({"parallel.tp=0"}, "must be at least 1"),
      rule({"parallel.ttp=2"}, "no key \"ttp\" in [parallel]; did you mean \"tp\"?"),
      rule({"parallel.pp_size=2"}, "no key \"pp_size\" in [parallel]; did you mean \"pp\"?"),
      rule({"parallel.num_model_chunks=2"},
           "a plugin's own keys belong in [plugin.NAME]  (trireme config --explain num"),
  });
}

TEST_F(Refusals, OfRanksDataAndModel) {
  const auto cases = std::vector<RefusedRow>{
      {{"parallel.dp=2"}, "leaves 8 of 8 ranks for data parallelism; set dp = 8, or start 2 ranks"},
      {{"plugin.gemini.max_prefetch=1"}, "belongs to the plugin \"gemini\", but this run uses \"torch_ddp\""},
      {{"plugin.low_level_zero.stge=2"}, "no key \"stge\" in [plugin.low_level_zero]; did you mean \"stage\"?"},
      {{"plugin.low_level_zero.stage=two"}, "must be an integer, not a string"},
      {{"plugin.gemini.shard_param_frac=2"}, "must be at least 0 and at most 1"},
      {{"plugin.low_level_zer.stage=2"},
       "[plugin.low_level_zer] is not the section of any plugin; did you mean \"low_level_zero\"?"},
      {{"plugin.torch_ddp.static_graph=true", "plugin.torch_ddp.find_unused_parameters=true"},
       "set only one of the two"},
      {{"parallel.plugin=nothing"}, "no plugin \"nothing\" (known: "},
      {{"model.name=vitt"}, "vitt"},
      {{"train.drop_last=true", "train.global_batch=100"},
       "drop_last = true leaves no steps: 42 samples do not fill a global batch of 100"},
      {{"schedule.warmup_steps=7"},
       "--set schedule.warmup_steps=7: sets 7 warm-up steps, but the training has only 6; lower it"},
      {{"schedule.name=multi_step", "schedule.milestones=[4]", "schedule.warmup_steps=5"},
       "4 is before the end of the warm-up; it must be at least 5"},
      {{"train.eval_every=7"},
       "--set train.eval_every=7: has no effect, because the training has only 6 steps; lower it, or remove it"},
      {{"train.global_batch=1", "data.mixup=0.5"}, "a batch of one sample has no other one to mix it with", 1},
      {{"train.global_batch=1", "data.cutmix=1"}, "raise global_batch, or turn mixing off", 1},
      {{"optimizer.no_decay=[\"bais\"]", "optimizer.weight_decay=0.1"},
       "--set optimizer.no_decay=[\"bais\"]: \"bais\" matches no parameter; did you mean \"bias\"?"},
      {{"optimizer.no_decay=[\"bias\"]"}, "has no effect while weight_decay is 0; set optimizer.weight_decay"},
      {{"optimizer.freeze=[\"encodr\"]"},
       "--set optimizer.freeze=[\"encodr\"]: \"encodr\" matches no parameter; did you mean \"encoder\"?"},
      {{"optimizer.freeze=[\"*\"]"}, "* matches all 24 parameters; nothing is left to train"},
      {{"model.patch_size=7"}, "patch_size"},
      {{"model.size=base"},
       "has no effect, because hidden_size, num_layers, num_heads and intermediate_size are set too; remove it, or "
       "them"},
      {{"model.weights=/nowhere/weights"}, "/nowhere/weights", 8, ExitCode::checkpoint},
      {{"run.resume=/nowhere"}, "/nowhere", 8, ExitCode::checkpoint},
      {{"run.dir=" + folder_.path()}, "which is not part of a run; name another folder"},
      {{"run.dir=" + folder_.write("file", "")}, "is a file; name a folder"},
  };
  expect_refused(cases);
}

TEST_F(Refusals, OfPlugins) {
  const std::string zero = "plugin.low_level_zero.", gemini = "plugin.gemini.", hybrid = "plugin.hybrid_parallel.",
                    replicas = "plugin.data_parallel.";
  const std::vector<RefusedRow> rows{
      {{zero + "stage=3"}, "stage=3: stage 3 is not supported: this plugin has stages 1 and 2", 2},
      {{zero + "stage=0"}, "must be at least 1"},
      {{zero + "stagee=1"}, "no key \"stagee\" in [plugin.low_level_zero]; did you mean \"stage\"?"},
      {{zero + "extra_dp_size=2"},
       "3 data-parallel ranks cannot form 2 groups of equal size; choose a divisor of 3",
       3},
      {{zero + "no_sync=true"}, "has no effect in stage 1"},
      {{zero + "stage=2", zero + "no_sync=true"}, "has no effect: a step has one microbatch"},
      {{zero + "cast_inputs=false"}, "has no effect in fp32"},
      {{zero + "extra_dp_size=2"}, "makes 2 groups of one rank each, so nothing is partitioned", 2},
      {{zero + "master_weights=false"}, "has no effect in fp32"},
      {{zero + "precision=fp16", "train.precision=bf16"}, "set only one of them, or both to the same value"},
      {{zero + "max_norm=1.0", "train.max_norm=2.0"}, "set only one of them, or both to the same value"},
      {{zero + "initial_scale=8.0"}, "has no effect with precision = \"fp32\"; remove it, or set precision to fp16"},
      {{zero + "precision=fp64", zero + "grad_accum_dtype=bf16"}, "would round the gradients of an fp64 run"},
      {{zero + "communication_dtype=fp32"}, "has no effect: gradients are fp32 anyway"},
      {{zero + "norm_type=\"3\""}, "3"},
      {{zero + "reduce_bucket_size_in_m=0"}, "reduce_bucket_size_in_m"},
      {{replicas + "replicas=0"}, "must be at least 1 and at most 64"},
      {{replicas + "replicas=2"}, "runs its replicas in one process, but there are 2 ranks; set parallel.plugin", 2},
      {{gemini + "offload_optim_frac=-0.1"}, "must be at least 0 and at most 1"},
      {{gemini + "offload_param_frac=0.5", gemini + "offload_optim_frac=0.25"},
       "is more than offload_optim_frac = 0.25",
       2},
      {{gemini + "offload_param_frac=0.5", gemini + "offload_optim_frac=1", gemini + "shard_param_frac=0.25"},
       "is more than shard_param_frac = 0.25"},
      {{gemini + "strict_ddp_mode=true", gemini + "shard_param_frac=0.5"}, "set only one"},
      {{gemini + "max_prefetch=1", gemini + "shard_param_frac=0"}, "has no effect"},
      {{gemini + "hidden_dim=64", gemini + "chunk_config=1000"}, "has no effect when chunk_config gives the size"},
      {{gemini + "extra_dp_size=2"}, "3 data-parallel ranks cannot form 2 groups", 3},
      {{gemini + "enable_gradient_accumulation=true"}, "has no effect: a step has one microbatch"},
      {{gemini + "force_outputs_fp32=false"}, "has no effect in fp32"},
      {{gemini + "chunk_config=0"}, "must be at least 1"},
      {{gemini + "placement_policy=auto"}, "set run.memory_mb to what a rank's tensors may take"},
      {{gemini + "placement_policy=auto", gemini + "offload_optim_frac=0.5"},
       "is decided by placement_policy = \"auto\""},
      {{gemini + "steady_cuda_cap_ratio=0.5"}, "remove it, or set placement_policy to auto"},
      {{gemini + "memstats=some.json"}, "remove it, or set placement_policy to auto"},
      {{gemini + "placement_policy=auto", "run.memory_mb=100", gemini + "memstats=nowhere/some.json"},
       "nowhere\"; create it, or name another"},
      {{gemini + "placement_policy=auto", "run.memory_mb=100", gemini + "memstats=" + dir() + "/some.json"},
       "which the next run renames; choose a file outside it"},
      {{gemini + "pin_memory=false"}, "has no effect where nothing is offloaded"},
      {{"parallel.pp=2"},
       "parallel.pp=2: ranks = dp x pp x sp x tp, but 3 is not a multiple of 2 (pp = 2); start 4 ranks",
       3},
      {{"parallel.pp=2", "parallel.tp=2"}, "3 is not a multiple of 4 (pp = 2 and tp = 2); start 4 ranks", 3},
      {{"parallel.pp=4"}, "parallel.pp=4: 3 blocks cannot be split into 4 stages", 4},
      {{"parallel.pp=2", hybrid + "num_layers_per_stage=[1, 3]"}, "num_layers_per_stage=[1, 3]: ", 2},
      {{"parallel.pp=2", "parallel.schedule=1f1"}, "1f1b", 2},
      {{"parallel.schedule=gpipe"}, "has no effect: there is no pipeline"},
      {{"parallel.pp=2", "parallel.schedule=interleaved"}, "parallel.pp=2: 3 blocks cannot be split into 4 stages", 2},
      {{"parallel.pp=2", "parallel.schedule=interleaved", hybrid + "num_model_chunks=1"},
       "1 does not fit schedule interleaved, which has 2 or more on each rank; leave the key out",
       2},
      {{"parallel.pp=2", "parallel.schedule=zbv"}, "3 blocks cannot be split into 4 stages", 2},
      {{"parallel.pp=2", "parallel.schedule=interleaved", hybrid + "num_model_chunks=2"},
       "num_model_chunks=2: 3 blocks cannot be split into 4 stages",
       2},
      {{"parallel.pp=2", hybrid + "num_microbatches=5"}, "8 samples per rank cannot be split into 5 microbatches", 2},
      {{"parallel.pp=2", hybrid + "num_microbatches=2", "train.micro_batch=2"}, "set only one of them", 2},
      {{"parallel.pp=2", hybrid + "microbatch_size=2", "train.micro_batch=1"},
       "set only one of them, or both to the same value",
       2},
      {{hybrid + "num_model_chunks=2"}, "has no effect: there is no pipeline"},
      {{"parallel.pp=2", "parallel.zero=1"}, "has no effect: pp = 2 leaves no data-parallel ranks", 2},
      {{hybrid + "tp_size=3"}, "3 ranks cannot share 2 attention heads; choose at most 2", 3},
      {{"parallel.tp=2", "parallel.dp=2"}, "leaves 1 of 2 ranks for data parallelism; set dp = 1, or start 4 ranks", 2},
      {{"parallel.tp=2", hybrid + "tp_size=1"}, "parallel.tp=2: plugin.hybrid_parallel.tp_size (", 2},
      {{"parallel.tp=2", "parallel.zero=1"}, "has no effect: tp = 2 leaves no data-parallel ranks", 2},
      {{"parallel.tp=2", "parallel.zero=3"}, "has no effect: tp = 2 leaves no data-parallel ranks", 2},
      {{hybrid + "zero_stage=4"}, "must be at least 0 and at most 3"},
      {{"parallel.zero=3", "parallel.plugin=gemini"}, "the plugin \"gemini\" does not have this option", 2},
      {{hybrid + "parallel_output=false"}, "has no effect: tp_size is 1"},
      {{hybrid + "overlap_allgather=true"}, "has no effect with zero_stage = 0"},
      {{"parallel.tp=2", hybrid + "communication_dtype=bf16"}, "no data-parallel ranks to reduce gradients over", 2},
      {{"parallel.sp=2"}, "2 ranks would share each sample, but no mode is set; set parallel.sp_mode", 2},
      {{"parallel.sp_mode=split_gather"},
       "but parallel.tp is 1; set parallel.tp to 2 or more, or choose a mode that uses",
       2},
      {{"parallel.sp_mode=ring_attn"}, "has no effect with parallel.sp = 1; set parallel.sp to 2 or more", 2},
      {{"parallel.sp_mode=ulysses"}, "ulysses"},
      {{"parallel.tp=2", "parallel.sp=4", "parallel.sp_mode=ring"},
       "ring reuses the 2 ranks of parallel.tp; remove parallel.sp",
       2},
      {{"parallel.sp=3", "parallel.sp_mode=all_to_all"},
       "parallel.sp=3: all_to_all needs an attention head for each of 3 ranks, but there are only 2; choose "
       "parallel.sp at most 2, or the mode",
       3},
      {{"parallel.tp=2", "parallel.sp=2", "parallel.sp_mode=all_to_all"},
       "for each of 2 ranks, but a tensor-parallel rank has only 1",
       4},
      {{"parallel.sp=2", "parallel.sp_mode=ring_attn"}, "but 3 is not a multiple of 2 (sp = 2); start 4 ranks", 3},
      {{"parallel.sp=2", "parallel.sp_mode=ring_attn", "parallel.dp=2"}, "leaves 1 of 2 ranks for data parallelism", 2},
      {{hybrid + "enable_sequence_parallelism=true"}, "is true, but no mode is set; set sequence_parallelism_mode"},
      {{hybrid + "enable_sequence_parallelism=false", "parallel.tp=2", "parallel.sp_mode=ring"},
       "is false, but parallel.sp_mode is \"ring\"",
       2},
      {{hybrid + "enable_all_optimization=true", hybrid + "enable_jit_fused=false"},
       "enable_jit_fused=false: is false, but enable_all_optimization = true turns it on; remove one of the two"},
      {{hybrid + "enable_sequence_overlap=false"}, "has no effect without sequence parallelism"},
      {{"parallel.sp=2", "parallel.sp_mode=all_to_all", hybrid + "enable_sequence_overlap=true"},
       "all_to_all has no computation to overlap with",
       2},
      {{hybrid + "enable_flash_attention=true", "model.attention_dropout=0.1"},
       "is not possible with attention dropout"},
      {{"parallel.sp=2", "parallel.sp_mode=ring_attn", hybrid + "enable_flash_attention=false"},
       "has no effect: ring_attn uses its own attention",
       2},
      {{hybrid + "recompute_ratio=0.5"}, "recompute_ratio=0.5: has no effect without recompute"},
      {{hybrid + "recompute_ratio=0.5", "train.recompute=true", hybrid + "recompute_layers_per_stage=[1]"},
       "set only one of them"},
      {{hybrid + "recompute_layers_per_stage=[0]", "train.recompute=true"}, "leaves no block to recompute"},
      {{hybrid + "recompute_layers_per_stage=[1, 1]", "train.recompute=true"}, "2 numbers for 1 stages; give one per"},
      {{"parallel.pp=2", hybrid + "recompute_layers_per_stage=[1, 3]", "train.recompute=true"},
       "but pp_partition = \"flops\" chooses the stages at run time; set num_layers_per_stage too, or use "
       "recompute_ratio",
       2},
      {{"parallel.pp=2", hybrid + "recompute_layers_per_stage=[1, 3]", "train.recompute=true",
        hybrid + "pp_partition=uniform"},
       "recompute_layers_per_stage=[1, 3]: stage 1 has",
       2},
      {{"parallel.zero=1", hybrid + "max_prefetch=1"}, "has no effect with parallel.zero = 1; remove it, or set", 2},
      {{"parallel.zero=2", hybrid + "check_reduction=true"},
       "has no effect with parallel.zero = 2; remove it, or set",
       2},
      {{"parallel.tp=2", hybrid + "check_reduction=true"}, "no data-parallel ranks to reduce gradients over", 2},
      {{"parallel.zero=3", hybrid + "steady_cuda_cap_ratio=0.5"},
       "has no effect with placement_policy = \"static\"",
       2},
      {{"parallel.zero=3", hybrid + "placement_policy=auto"}, "set run.memory_mb to what a rank's tensors may take", 2},
      {{"parallel.zero=3", "parallel.pp=2", hybrid + "placement_policy=auto", "run.memory_mb=100"},
       "but a pipeline has several microbatches under way at once; choose \"static\"",
       4},
      {{"parallel.zero=3", "parallel.tp=2", hybrid + "placement_policy=auto", "run.memory_mb=100",
        hybrid + "memstats=a.json"},
       "but each tensor-parallel rank has another; remove it",
       4},
      {{"parallel.zero=3", hybrid + "cpu_offload=true", hybrid + "offload_optim_frac=0.5"},
       "is offload_optim_frac = 1, but offload_optim_frac is 0.5; remove one of them",
       2},
      {{"parallel.zero=3", hybrid + "overlap_allgather=true", hybrid + "max_prefetch=2"},
       "which is max_prefetch = 1; set only one of them",
       2},
      {{"parallel.zero=3", hybrid + "zero_bucket_size_in_m=1", hybrid + "chunk_config=1000"},
       "conflicts with zero_bucket_size_in_m, which is the size of a chunk too",
       2},
      {{"parallel.zero=3", hybrid + "zero_bucket_size_in_m=1", hybrid + "hidden_dim=64"},
       "has no effect when zero_bucket_size_in_m gives the size",
       2},
      {{"parallel.zero=3", hybrid + "offload_param_frac=0.5"}, "is more than offload_optim_frac = 0", 2},
      {{"parallel.zero=3", hybrid + "enable_gradient_accumulation=true"}, "a step has one microbatch", 2},
      {{"parallel.zero=3", hybrid + "extra_dp_size=2"}, "makes 2 groups of one rank each", 2},
      {{"parallel.zero=1", hybrid + "extra_dp_size=3"}, "2 data-parallel ranks cannot form 3 groups of equal size", 2},
      {{"parallel.tp=1", hybrid + "extra_dp_size=2"}, "has no effect with parallel.zero = 0", 2},
      {{hybrid + "enable_sequence_overlap=false", "parallel.tp=2", "parallel.sp_mode=ring",
        "train.enable_all_optimization=true"},
       "is false, but enable_all_optimization = true turns it on",
       2},
      {{gemini + "chunk_config_dict=1"}, "one size is enough: give it with chunk_config, in elements"},
      {{zero + "stage=1", "parallel.tp=1"}, "the plugin \"low_level_zero\" does not have this option"},
  };
  for (const auto& row : rows) {
    const auto begins = [&](const std::string& with) { return row.sets.front().rfind(with, 0) == 0; };
    // Keys of [parallel] choose hybrid_parallel.
    const auto* plugin = begins(gemini)     ? "gemini"
                         : begins(hybrid)   ? "hybrid_parallel"
                         : begins(replicas) ? "data_parallel"
                                            : "low_level_zero";
    if (begins("parallel."))
      expect_refused({row});
    else
      expect_refused({row}, {fmt::format("parallel.plugin={}", plugin)});
  }
}

// A pipeline schedule of one's own is proven for every number of microbatches that a step can have.
TEST_F(Refusals, OfAWrongSchedule) {
  using pipeline::Op;
  auto kinds = builtin_kinds();
  const auto add = [&](const char* name, void (*change)(pipeline::Schedule&)) {
    kinds.pipeline_schedules.add(name, {[change](int ranks, int microbatches, int) {
                                   auto schedule = pipeline::gpipe(ranks, microbatches);
                                   change(schedule);
                                   return schedule;
                                 }});
  };
  add("fine", [](pipeline::Schedule&) {});
  add("stuck", [](pipeline::Schedule& schedule) {
    std::vector<pipeline::Action> alternating;
    for (int i = 0; i < schedule.microbatches; ++i)
      for (const auto op : {Op::forward, Op::backward}) alternating.push_back({op, 0, i});
    schedule.actions[0] = alternating;
  });
  add("lacks_a_rank", [](pipeline::Schedule& schedule) { schedule.actions.pop_back(); });
  add("twice", [](pipeline::Schedule& schedule) { schedule.actions[1].push_back({Op::backward, 0, 0}); });
  add("wrong_for_three", [](pipeline::Schedule& schedule) {
    if (schedule.microbatches == 3) schedule.actions[0].pop_back();
  });
  add("throws", [](pipeline::Schedule&) { throw std::out_of_range("no such rank"); });
  EXPECT_EQ(data::testing_tools::message_of<ConfigError>([&] { kinds.pipeline_schedules.add("empty", {}); }),
            "the pipeline schedule \"empty\" is incomplete: set its make");
  const std::vector<std::string> pipeline{"parallel.pp=2", "train.micro_batch=2"};
  expect_refused(
      {
          {{"parallel.schedule=stuck"},
           "parallel.schedule=stuck: the schedule stuck is wrong for 2 ranks with 1 chunk each, and 4 microbatches: "
           "rank 0, "
           "instruction 3: backward of stage 0 (chunk 0), microbatch 0 waits forever for the gradient of stage 1",
           2},
          {{"parallel.schedule=lacks_a_rank"}, "there are lists of actions for 1 ranks, not for 2", 2},
          {{"parallel.schedule=twice"}, "microbatch 0: all microbatches have already been done", 2},
          {{"parallel.schedule=wrong_for_three"},
           "is wrong for 2 ranks with 1 chunk each, and 3 microbatches: rank 0, at",
           2},
          {{"parallel.schedule=throws"},
           "parallel.schedule=throws: the function that makes the schedule throws has failed for 2 ranks with 1 chunk "
           "each, and 1 microbatch: no such rank; choose another schedule",
           2},
          {{"parallel.schedule=fin"},
           "must be one of 1f1b, fine, gpipe, interleaved, lacks_a_rank, stuck, throws, twice, wrong_for_three, zb_h1, "
           "zbv; "
           "did you mean \"fine\"?",
           2},
      },
      pipeline, kinds);
  EXPECT_NO_THROW(
      testing_tools::setup_of(testing_tools::kFiveSteps, {"parallel.pp=2", "parallel.schedule=fine"}, 2, "", kinds));
}

// A policy's role is found by name, among those of extensions too, before anything starts.
TEST_F(Refusals, OfAnUnknownRole) {
  struct Misnamed : models::vit::Kind {
    [[nodiscard]] nn::Policy policy(const void* options) const override {
      auto policy = Kind::policy(options);
      policy.tensor.push_back({"vit.layernorm", "own_role"});
      return policy;
    }
  };
  auto kinds = builtin_kinds();
  kinds.models = decltype(kinds.models)("model");
  kinds.models.add("vit", std::make_shared<Misnamed>());
  const auto base = folder_.path("base");
  testing_tools::train_small(
      testing_tools::setup_of(testing_tools::kFiveSteps + "max_steps = 1\n", {"run.dir=" + base}));
  const auto add = [&](const char* name) {
    kinds.roles.tensor.add(name, {.rule = shardformer::rule_for<nn::Linear>("a linear layer", [](auto&, auto&) {})});
  };
  add("own_rule");
  expect_refused({{{"parallel.dp=1"}, "[model] name: the policy's entry for \"vit.layernorm\": no role", 1},
                  {{"parallel.zero=1"}, "[model] name: the policy's entry for \"vit.layernorm\": no role", 2},
                  {{"parallel.tp=2"},
                   "[model] name: the policy's entry for \"vit.layernorm\": no role for tensor parallelism "
                   "\"own_role\" (known: attention, classifier_head, column_parallel, column_parallel_gather_output, "
                   "gated_column_parallel, own_rule, row_parallel, sharded_dropout, tied_embedding, tied_head, "
                   "vocab_parallel_embedding); did you mean \"own_rule\"?",
                   2},
                  {{"lora.rank=2", "model.weights=" + base}, "no role for tensor parallelism \"own_role\"", 1}},
                 {}, kinds);
  add("own_role");
  expect_refused({{{"parallel.tp=2"}, "the policy calls \"vit.layernorm\" a linear layer, which it is not", 2}}, {},
                 kinds);
}

// What an extension's functions leave out is said by the name under which they are chosen.
TEST_F(Refusals, OfAModelThatIsNotMade) {
  struct Nothing : models::vit::Kind {
    [[nodiscard]] std::unique_ptr<nn::Model> make_model(const models::vit::Options&) const override { return nullptr; }
  };
  auto kinds = builtin_kinds();
  kinds.models = decltype(kinds.models)("model");
  kinds.models.add("vit", std::make_shared<Nothing>());
  expect_refused({{{"parallel.dp=1"}, "the function that makes the model \"vit\" returned nothing", 1}}, {}, kinds);
}

template <class O>
std::string configured_with(const O& options) {
  const auto plugin = load_plugin(options);
  EXPECT_EQ(plugin->name(), O::kPlugin);
  EXPECT_EQ(typeid(O), *plugin->fields().described);
  return config::print_rows(plugin->fields(), plugin->options());
}

// The struct of options is the plugin's own, and is checked like a section of a file.
TEST(ProgramsPlugin, TakesItsOptionsAsAStruct) {
  plugins::LowLevelZeroOptions zero;
  zero.stage = 2;
  zero.norm_type = "inf";
  const auto shown = configured_with(zero);
  for (const auto* line : {"stage = 2\n", "norm_type = \"inf\"\n"})
    EXPECT_NE(shown.find(line), std::string::npos) << shown;
  configured_with(plugins::TorchDdpOptions{.bucket_cap_mb = 10});
  configured_with(plugins::DataParallelOptions{.replicas = 3});
  configured_with(plugins::GeminiOptions{});
  configured_with(plugins::HybridParallelOptions{});
  zero.stage = 3;
  plugins::GeminiOptions gemini;
  gemini.extra_dp_size = 0;
  plugins::HybridParallelOptions hybrid;
  hybrid.sp_size = 2;
  const auto refused = [](const auto& options) {
    return data::testing_tools::message_of<ConfigError>([&] { load_plugin(options); });
  };
  for (const auto& [said, expected] :
       {std::pair{refused(zero), "plugin.low_level_zero.stage = 3: stage 3 is not supported"},
        {refused(gemini), "plugin.gemini.extra_dp_size = 0: it must be at least 1"},
        {refused(hybrid), "plugin.hybrid_parallel.sp_size = 2: 2 ranks would share each sample, but no mode is set"},
        {data::testing_tools::message_of<ConfigError>([&] { load_plugin("gemini", hybrid); }),
         "these options are those of the plugin \"hybrid_parallel\", but \"gemini\" is loaded"}})
    EXPECT_EQ(said.rfind(expected, 0), 0U) << said;
  PluginKinds kinds;
  kinds.pipeline_schedules.add("own", kinds.pipeline_schedules.at("zbv"));
  hybrid = {};
  hybrid.pp_size = 2;
  hybrid.pp_style = "own";
  EXPECT_EQ(load_plugin(hybrid, kinds)->axes(2).size(), 3U);
  const auto unknown = refused(hybrid);
  EXPECT_NE(unknown.find("plugin.hybrid_parallel.pp_style = \"own\""), std::string::npos) << unknown;
  EXPECT_NE(unknown.find("must be one of 1f1b, gpipe"), std::string::npos) << unknown;
}

// What would not train the adapters of a trained model, and adapters of a file that do not fit.
TEST_F(Refusals, OfAdapters) {
  const auto train = [&](const std::string& name, std::vector<std::string> sets) {
    sets.push_back("run.dir=" + folder_.path(name));
    testing_tools::train_small(testing_tools::setup_of(testing_tools::kFiveSteps + "max_steps = 1\n", sets));
    return folder_.path(name);
  };
  const auto base = train("base", {});
  const std::vector<std::string> lora{"model.weights=" + base, "lora.rank=2", "lora.dropout=0.1"};
  const auto adapters = train("adapters", lora);
  expect_refused(
      {
          {{"model.weights=\"\""}, "is empty, but [lora] adapts a trained model; name its weights, or remove [lora]"},
          {{"model.weights=" + adapters}, "holds adapters, which are no weights; name the model that they adapt here"},
          {{"optimizer.freeze=[\"query\"]"}, "conflicts with [lora], which freezes all weights but the adapters"},
          {{"lora.target=[\"qery\"]"}, "\"qery\" matches no linear layer without lora.train"},
          {{"lora.target=[\"projection\"]"}, "is not a linear layer, and only these have adapters"},
          {{"lora.target=[]"}, "is empty; name the layers that get adapters, or all-linear"},
          {{"lora.train=[\"clasifier\"]"}, "\"clasifier\" matches no module that has parameters"},
          {{"lora.rank=17"}, "17 is more than the rank of "},
          {{"lora.dropout=1"}, "below 1"},
          {{"lora.weights=" + base}, "no adapters in "},
          {{"lora.weights=" + adapters, "lora.rank=3"}, "is 3, but the adapters of "},
      },
      lora);
  // The adapters' own layers are known when they are loaded, after the run has its folder.
  auto other_layers = lora;
  other_layers.insert(other_layers.end(), {"lora.weights=" + adapters, "lora.target=[\"query\"]"});
  EXPECT_NE(data::testing_tools::message_of<CheckpointError>([&] {
              train("refused", other_layers);
            }).find("of layers that have no adapters here"),
            std::string::npos);
  const auto file = adapters + "/model/adapter_config.json";
  const auto stored = nlohmann::json::parse(std::ifstream(file));
  for (const auto& [key, value, says] :
       {std::tuple{"r", nlohmann::json(2.7), "r is 2.7; it must be an integer, at least 1 and at most 65536"},
        {"r", -1, "r is -1; it must be an integer, at least 1"},
        {"r", nullptr, "r is missing; it must be"},
        {"r", "2", "r is \"2\"; it must be"},
        {"lora_alpha", 0, "lora_alpha is 0; it must be a number, above 0 and at most"},
        {"lora_alpha", true, "lora_alpha is true; it must be"}}) {
    auto changed = stored;
    changed[key] = value;
    std::ofstream(file) << changed;
    expect_refused({{{"lora.weights=" + adapters}, file + ": " + says, 8, ExitCode::checkpoint}}, lora);
  }
}

// The system would load a truncated file, and end the process at the first access to a missing byte.
TEST_F(Refusals, OfATruncatedPlugin) {
  namespace fs = std::filesystem;
  const fs::path whole = plugin_path("gemini"), cut = folder_.path("cut.so");
  for (const std::uintmax_t bytes :
       {std::uintmax_t{100}, std::uintmax_t{1000}, file_size(whole) / 4, file_size(whole) / 2}) {
    fs::copy_file(whole, cut, fs::copy_options::overwrite_existing);
    fs::resize_file(cut, bytes);
    expect_refused(
        {{{"parallel.plugin=" + cut.string()}, "parallel.plugin=" + cut.string() + ": " + cut.string() + ": "}});
  }
}

// Keys of [train] may be in a plugin's section: errors point to that section, also for rules over several keys.
TEST_F(Refusals, PointToKeysOfTrainInAPluginsSection) {
  const std::string gemini = "[parallel]\nplugin = \"gemini\"\n[plugin.gemini]\n";
  for (const auto& [text, says] :
       {std::pair{gemini + "recompute_ratio = 0.5\n",
                  "14:1: plugin.gemini.recompute_ratio = 0.5: has no effect without"},
        {"[train]\nrecompute = true\n" + gemini + "recompute_layers_per_stage = [9]\n",
         "16:1: plugin.gemini.recompute_layers_per_stage = [9]: stage 0 has 3 blocks; choose at most 3"},
        {gemini + "attention_kernel = \"cudnn\"\n",
         "14:1: plugin.gemini.attention_kernel = \"cudnn\": LibTorch has no cudnn attention"},
        {"[train]\nattention_kernel = \"cudnn\"\n", "12:1: train.attention_kernel = \"cudnn\": LibTorch has no cudnn"},
        {gemini + "initial_scale = 8.0\n",
         "14:1: plugin.gemini.initial_scale = 8.0: has no effect with precision ="}}) {
    const auto said = data::testing_tools::message_of<ConfigError>(
        [&] { testing_tools::setup_of(testing_tools::kModelAndData + text, {"run.device=cpu"}); });
    EXPECT_EQ(said.rfind(std::string("a.toml:") + says, 0), 0U) << said;
  }
}

// Errors name a key as the user wrote it.
TEST_F(Refusals, NameKeysAsTheyAreWritten) {
  const std::string hybrid = "plugin.hybrid_parallel.";
  expect_refused({
      {{"parallel.sp_mode=split_gather"}, "but parallel.tp is 1; set parallel.tp to 2 or more, or choose a mode that"},
      {{"parallel.sp=2"}, "no mode is set; set parallel.sp_mode to one of"},
      {{"parallel.tp=2", hybrid + "sp_size=2"},
       "hybrid_parallel.sp_size=2: 2 ranks would share each sample, but no mode is set; set parallel.sp_mode"},
  });
  expect_refused({{{hybrid + "sequence_parallelism_mode=ring"}, "but tp_size is 1; set tp_size to 2 or more"},
                  {{hybrid + "sp_size=2"}, "no mode is set; set sequence_parallelism_mode"}},
                 {"parallel.plugin=hybrid_parallel"});
}

}  // namespace
}  // namespace trireme::train
