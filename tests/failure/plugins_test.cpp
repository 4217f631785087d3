// Sections of plugins that cannot be meant: refused before any rank starts, with the key and the remedy.
#include "tests/failure/small_run.h"

namespace trireme::tests {
namespace {

struct Row {
  std::vector<std::string> sets;
  const char* says;
  int ranks = 1;
};

TEST(Plugins, RefuseWhatTheyCannotHonour) {
  const SmallRun run;
  const std::string zero = "plugin.low_level_zero.", gemini = "plugin.gemini.", hybrid = "plugin.hybrid_parallel.";
  const std::vector<Row> rows{
      {{zero + "stage=3"}, "stage=3: there is no stage 3 here: 1 and 2 are what this plugin does", 2},
      {{zero + "stage=0"}, "must be at least 1"},
      {{zero + "stagee=1"}, "no key \"stagee\" in [plugin.low_level_zero]; did you mean \"stage\"?"},
      {{zero + "extra_dp_size=2"}, "3 ranks cannot be 2 groups of one size; choose a divisor of 3", 3},
      {{zero + "no_sync=true"}, "changes nothing in stage 1"},
      {{zero + "stage=2", zero + "no_sync=true"}, "changes nothing: a step has one microbatch"},
      {{zero + "cast_inputs=false"}, "changes nothing in fp32"},
      {{zero + "extra_dp_size=2"}, "leaves one of the 2 ranks a group, and nothing is shared out", 2},
      {{zero + "master_weights=false"}, "changes nothing in fp32"},
      {{zero + "precision=fp16", "train.precision=bf16"}, "say it once, or alike"},
      {{zero + "max_norm=1.0", "train.max_norm=2.0"}, "say it once, or alike"},
      {{zero + "initial_scale=8.0"}, "changes nothing in fp32: the loss scale is of fp16"},
      {{zero + "precision=fp64", zero + "grad_accum_dtype=bf16"}, "would round the gradients of an fp64 run"},
      {{zero + "communication_dtype=fp32"}, "changes nothing: gradients are fp32 anyway"},
      {{zero + "norm_type=\"3\""}, "3"},
      {{zero + "reduce_bucket_size_in_m=0"}, "reduce_bucket_size_in_m"},
      {{gemini + "shard_param_frac=1.5"}, "must be at least 0 and at most 1"},
      {{gemini + "offload_optim_frac=-0.1"}, "must be at least 0 and at most 1"},
      {{gemini + "offload_param_frac=0.5", gemini + "offload_optim_frac=0.25"},
       "is more than offload_optim_frac = 0.25",
       2},
      {{gemini + "offload_param_frac=0.5", gemini + "offload_optim_frac=1", gemini + "shard_param_frac=0.25"},
       "is more than shard_param_frac = 0.25"},
      {{gemini + "strict_ddp_mode=true", gemini + "shard_param_frac=0.5"}, "set only one"},
      {{gemini + "max_prefetch=1", gemini + "shard_param_frac=0"}, "changes nothing"},
      {{gemini + "hidden_dim=64", gemini + "chunk_config=1000"}, "changes nothing when chunk_config gives the size"},
      {{gemini + "extra_dp_size=2"}, "3 ranks cannot be 2 groups", 3},
      {{gemini + "enable_gradient_accumulation=true"}, "changes nothing: a step has one microbatch"},
      {{gemini + "force_outputs_fp32=false"}, "changes nothing in fp32"},
      {{gemini + "chunk_config=0"}, "must be at least 1"},
      {{gemini + "placement_policy=auto"}, "set run.memory_mb to what a rank's tensors may take"},
      {{gemini + "placement_policy=auto", gemini + "offload_optim_frac=0.5"},
       "is what placement_policy = \"auto\" decides"},
      {{gemini + "steady_cuda_cap_ratio=0.5"}, "it is for auto; remove it"},
      {{gemini + "memstats=some.json"}, "it is for auto; remove it"},
      {{gemini + "placement_policy=auto", "run.memory_mb=100", gemini + "memstats=nowhere/some.json"},
       "there is no folder \"nowhere\""},
      {{gemini + "placement_policy=auto", "run.memory_mb=100", gemini + "memstats=" + run.dir() + "/some.json"},
       "which the next run moves aside; name a file beside it"},
      {{gemini + "pin_memory=false"}, "changes nothing where nothing is offloaded"},
      {{"parallel.tp=2"},
       "parallel.tp=2: ranks = dp x pp x sp x tp, and 3 is no multiple of 2 (tp = 2); start 4 ranks",
       3},
      {{"parallel.pp=2"},
       "parallel.pp=2: ranks = dp x pp x sp x tp, and 3 is no multiple of 2 (pp = 2); start 4 ranks",
       3},
      {{"parallel.pp=2", "parallel.tp=2"}, "3 is no multiple of 4 (pp = 2 and tp = 2); start 4 ranks", 3},
      {{"parallel.pp=4"}, "parallel.pp=4: 3 blocks cannot be 4 stages", 4},
      {{"parallel.pp=2", hybrid + "num_layers_per_stage=[1, 3]"}, "num_layers_per_stage=[1, 3]: ", 2},
      {{"parallel.pp=2", "parallel.schedule=1f1"}, "1f1b", 2},
      {{"parallel.schedule=gpipe"}, "changes nothing: there is no pipeline"},
      {{"parallel.pp=2", "parallel.schedule=interleaved"}, "parallel.pp=2: 3 blocks cannot be 4 stages", 2},
      {{"parallel.pp_size=2"}, "no key \"pp_size\" in [parallel]; did you mean \"pp\"?"},
      {{"parallel.num_model_chunks=2"}, "a plugin's own keys stand in [plugin.NAME]  (trireme config --explain num"},
      {{"parallel.pp=2", "parallel.schedule=interleaved", hybrid + "num_model_chunks=1"},
       "interleaved with 1 is 1f1b",
       2},
      {{"parallel.pp=2", "parallel.schedule=zbv"}, "3 blocks cannot be 4 stages", 2},
      {{"parallel.pp=2", "parallel.schedule=interleaved", hybrid + "num_model_chunks=2"},
       "num_model_chunks=2: 3 blocks cannot be 4 stages",
       2},
      {{"parallel.pp=2", hybrid + "num_microbatches=5"}, "8 samples a rank cannot be 5 parts", 2},
      {{"parallel.pp=2", hybrid + "num_microbatches=2", "train.micro_batch=2"}, "say the same thing in two ways", 2},
      {{"parallel.pp=2", hybrid + "microbatch_size=2", "train.micro_batch=1"}, "say it once, or alike", 2},
      {{hybrid + "num_model_chunks=2"}, "changes nothing: there is no pipeline"},
      {{"parallel.pp=2", "parallel.zero=1"}, "changes nothing: pp = 2 leaves no data-parallel ranks", 2},
      {{hybrid + "tp_size=3"}, "3 ranks cannot share 2 attention heads; choose at most 2", 3},
      {{"parallel.tp=2", "parallel.dp=2"}, "leaves 1 of 2 ranks for data parallelism; set dp = 1, or start 4 ranks", 2},
      {{"parallel.tp=2", hybrid + "tp_size=1"}, "parallel.tp=2: plugin.hybrid_parallel.tp_size (", 2},
      {{"parallel.tp=2", "parallel.zero=1"}, "changes nothing: tp = 2 leaves no data-parallel ranks", 2},
      {{"parallel.tp=2", "parallel.zero=3"}, "changes nothing: tp = 2 leaves no data-parallel ranks", 2},
      {{"parallel.zero=4"}, "parallel.zero=4: it must be at least 0 and at most 3"},
      {{hybrid + "zero_stage=4"}, "must be at least 0 and at most 3"},
      {{"parallel.zero=3", "parallel.plugin=gemini"}, "the plugin \"gemini\" has no such choice", 2},
      {{"parallel.tp=0"}, "must be at least 1"},
      {{hybrid + "parallel_output=false"}, "changes nothing: tp_size is 1"},
      {{hybrid + "overlap_allgather=true"}, "changes nothing with zero_stage = 0"},
      {{"parallel.tp=2", hybrid + "communication_dtype=bf16"}, "no data-parallel ranks to reduce gradients over", 2},
      {{"parallel.sp=2"}, "2 ranks are to share each sample, and nothing says how; set sequence_parallelism_mode", 2},
      {{"parallel.sp_mode=split_gather"}, "and tp_size is 1; set tp_size to 2 or more, or choose a mode with ranks", 2},
      {{"parallel.sp_mode=ring_attn"}, "changes nothing with sp_size = 1; set sp_size to 2 or more", 2},
      {{"parallel.sp_mode=ulysses"}, "ulysses"},
      {{"parallel.tp=2", "parallel.sp=4", "parallel.sp_mode=ring"},
       "ring reuses the 2 ranks of tp_size; leave sp_size",
       2},
      {{"parallel.sp=3", "parallel.sp_mode=all_to_all"},
       "parallel.sp=3: all_to_all gives each of 3 ranks attention heads, and there are only 2; choose sp_size at most "
       "2, or the mode",
       3},
      {{"parallel.tp=2", "parallel.sp=2", "parallel.sp_mode=all_to_all"},
       "each of 2 ranks attention heads, and a tensor-parallel rank has only 1",
       4},
      {{"parallel.sp=2", "parallel.sp_mode=ring_attn"}, "and 3 is no multiple of 2 (sp = 2); start 4 ranks", 3},
      {{"parallel.sp=2", "parallel.sp_mode=ring_attn", "parallel.dp=2"}, "leaves 1 of 2 ranks for data parallelism", 2},
      {{hybrid + "enable_sequence_parallelism=true"}, "says yes, and nothing says how; set sequence_parallelism_mode"},
      {{hybrid + "enable_sequence_parallelism=false", "parallel.tp=2", "parallel.sp_mode=ring"},
       "says no, and sequence_parallelism_mode is \"ring\"",
       2},
      {{hybrid + "enable_all_optimization=true", hybrid + "enable_jit_fused=false"},
       "enable_jit_fused=false: is false, and enable_all_optimization turns it on; leave one of the two out"},
      {{hybrid + "enable_sequence_overlap=false"}, "changes nothing: no tokens are shared out"},
      {{"parallel.sp=2", "parallel.sp_mode=all_to_all", hybrid + "enable_sequence_overlap=true"},
       "all_to_all has nothing to compute while it sends",
       2},
      {{hybrid + "enable_flash_attention=true", "model.attention_dropout=0.1"},
       "cannot be had with dropout of attention probabilities"},
      {{"parallel.sp=2", "parallel.sp_mode=ring_attn", hybrid + "enable_flash_attention=false"},
       "changes nothing: ring_attn is an attention of its own",
       2},
      {{hybrid + "recompute_ratio=0.5"}, "recompute_ratio=0.5: changes nothing without recompute"},
      {{hybrid + "recompute_ratio=0.5", "train.recompute=true", hybrid + "recompute_layers_per_stage=[1]"},
       "say the same thing in two ways; leave one"},
      {{hybrid + "recompute_layers_per_stage=[0]", "train.recompute=true"}, "leaves no block to recompute"},
      {{hybrid + "recompute_layers_per_stage=[1, 1]", "train.recompute=true"}, "2 numbers for 1 stages; give one a"},
      {{"parallel.pp=2", hybrid + "recompute_layers_per_stage=[1, 3]", "train.recompute=true"},
       "and pp_partition = \"flops\" decides which these are; set num_layers_per_stage too, or recompute_ratio",
       2},
      {{"parallel.pp=2", hybrid + "recompute_layers_per_stage=[1, 3]", "train.recompute=true",
        hybrid + "pp_partition=uniform"},
       "recompute_layers_per_stage=[1, 3]: stage 1 has",
       2},
      {{"parallel.ttp=2"}, "no key \"ttp\" in [parallel]; did you mean \"tp\"?"},
      {{zero + "stage=1", "parallel.tp=1"}, "the plugin \"low_level_zero\" has no such choice"},
  };
  for (const auto& [sets, says, ranks] : rows) {
    SCOPED_TRACE(sets.front());
    const auto begins = [&](const std::string& with) { return sets.front().rfind(with, 0) == 0; };
    std::vector<std::string> words;  // [parallel] chooses hybrid_parallel by its keys
    if (!begins("parallel."))
      words = {"--set", std::string("parallel.plugin=") + (begins(gemini)   ? "gemini"
                                                           : begins(hybrid) ? "hybrid_parallel"
                                                                            : "low_level_zero")};
    for (const auto& set : sets) words.insert(words.end(), {"--set", set});
    expect_only_refusal(run.train(ranks, words), 2, says);
    EXPECT_FALSE(fs::exists(run.dir()));
  }
}

TEST(Plugins, TellWhichKernelsTheyChose) {
  const SmallRun run;
  const auto line = [&](const std::vector<std::string>& sets) {
    std::vector<std::string> words;
    for (const auto& set : sets) words.insert(words.end(), {"--set", set});
    const auto outcome = run.train(2, words);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    const auto at = outcome.out.find("kernels (");
    return at == std::string::npos ? "" : outcome.out.substr(at, outcome.out.find('\n', at) - at);
  };
  const std::string hybrid = "plugin.hybrid_parallel.";
  EXPECT_EQ(line({"parallel.tp=2"}), "");
  EXPECT_EQ(
      line({"parallel.tp=2", hybrid + "enable_all_optimization=true"}),
      "kernels (CPU): attention by LibTorch's flash kernel; sum and layer norm by LibTorch's kernels; bias and GELU "
      "by LibTorch's kernels, dropout and sum in one pass");
  EXPECT_EQ(line({"parallel.tp=2", "parallel.sp_mode=ring", hybrid + "enable_sequence_overlap=false",
                  hybrid + "enable_flash_attention=false"}),
            "kernels (CPU): attention forms its scores; tokens are waited for as they are sent");
}

// The configuration that a run writes is one that can be run, and verified in other layouts.
TEST(Plugins, TakeTheirOwnResolvedFile) {
  const SmallRun run;
  for (const std::vector<std::string>& sets :
       {std::vector<std::string>{"parallel.tp=2"},
        {"parallel.pp=2", "parallel.schedule=zb_h1"},
        {"parallel.sp=2", "parallel.sp_mode=all_to_all"},
        {"parallel.zero=3"},
        {"parallel.tp=2", "plugin.hybrid_parallel.enable_all_optimization=true", "train.recompute=true",
         "plugin.hybrid_parallel.recompute_ratio=0.5"},
        {"parallel.plugin=gemini"},
        {"parallel.plugin=gemini", "plugin.gemini.placement_policy=auto", "run.memory_mb=100"},
        {"parallel.plugin=low_level_zero", "plugin.low_level_zero.stage=2"}}) {
    std::vector<std::string> words{TRIREME_COMMAND, "config", run.config, "--print"};
    for (const auto& set : sets) words.insert(words.end(), {"--set", set});
    const auto printed = run_process(words);
    ASSERT_EQ(printed.code, 0) << printed.err;
    const auto file = run.folder.write("resolved.toml", printed.out);
    const auto again = run_process({TRIREME_COMMAND, "train", file, "--ranks", "2", "--set", "run.dir=" + run.dir(),
                                    "--set", "train.max_steps=1"});
    EXPECT_EQ(again.code, 0) << sets.front() << again.err;
    EXPECT_EQ(run_process({TRIREME_COMMAND, "verify", file, "--layouts", "dp=1;tp=2", "--steps", "1"}).code, 0);
  }
}

TEST(Plugins, RanksOfOneSampleSeeTheSameSamples) {
  const SmallRun run("[data]\nname = \"image_folder\"\npath = \"images\"\non_bad_sample = \"skip\"\n");
  expect_only_refusal(run.train(2, {"--set", "parallel.tp=2"}), 2,
                      "several ranks must see the same samples; choose \"error\"");
  expect_only_refusal(run.train(2, {"--set", "parallel.sp=2", "--set", "parallel.sp_mode=ring_attn"}), 2,
                      "with sp = 2 several ranks must see the same samples");
}

// A slip in a section that is kept for another day is told now.
TEST(Plugins, ReadTheSectionsOfThoseThatAreNotChosen) {
  const SmallRun run;
  for (const auto& [set, says] :
       {std::pair{"low_level_zero.stge=2", "no key \"stge\" in [plugin.low_level_zero]; did you mean \"stage\"?"},
        {"low_level_zero.stage=two", "must be an integer, not text"},
        {"gemini.shard_param_frac=2", "must be at least 0 and at most 1"},
        {"low_level_zero.stage=2", "is of the plugin \"low_level_zero\", and this run has \"torch_ddp\"; remove it"},
        {"low_level_zer.stage=2", "[plugin.low_level_zer] is the section of no plugin here; did you mean"}})
    expect_only_refusal(run.train(1, {"--set", std::string("plugin.") + set}), 2, says);
  EXPECT_FALSE(fs::exists(run.dir()));
  const std::string sections = "[plugin.gemini]\nmax_prefetch = 1\n[plugin.torch_ddp]\nbucket_cap_mb = 2\n";
  const auto check = [&](const std::string& zero, const std::string& parallel) {
    return run_process({TRIREME_COMMAND, "config",
                        run.folder.write("several.toml", std::string(kModel) + kLeaves + sections +
                                                             "[plugin.low_level_zero]\n" + zero + parallel)});
  };
  const std::string named = "[parallel]\nplugin = \"torch_ddp\"\n";
  expect_only_refusal(check("stge = 2\n", named), 2, "several.toml:17:1: no key \"stge\"");
  expect_only_refusal(check("stage = 2\n", ""), 2,
                      "changes nothing: no key names its plugin, and the run has \"torch_");
  const auto good = check("stage = 2\n", named);
  EXPECT_EQ(good.code, 0) << good.err;
}

TEST(Plugins, TakeWhatTrainSaysFromTheirSection) {
  const SmallRun run;
  const auto outcome =
      run_process({TRIREME_COMMAND, "config", run.config, "--print", "--set", "parallel.plugin=low_level_zero", "--set",
                   "plugin.low_level_zero.precision=bf16", "--set", "plugin.low_level_zero.max_norm=0.5", "--set",
                   "plugin.low_level_zero.norm_type=inf"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  const auto train = outcome.out.substr(outcome.out.find("[train]"), outcome.out.find("[optimizer]"));
  EXPECT_NE(train.find("precision = \"bf16\""), std::string::npos) << outcome.out;
  EXPECT_NE(train.find("max_norm = 0.5"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("norm_type = \"inf\""), std::string::npos) << outcome.out;
}

}  // namespace
}  // namespace trireme::tests
