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
  const std::string zero = "plugin.low_level_zero.", gemini = "plugin.gemini.";
  const std::vector<Row> rows{
      {{zero + "stage=3"}, "stage=3: there is no stage 3 here: 1 and 2 are what this plugin does", 2},
      {{zero + "stage=0"}, "must be at least 1"},
      {{zero + "stagee=1"}, "no key \"stagee\" in [plugin.low_level_zero]; did you mean \"stage\"?"},
      {{zero + "extra_dp_size=2"}, "3 ranks cannot be 2 groups of one size; choose a divisor of 3", 3},
      {{zero + "no_sync=true"}, "changes nothing in stage 1"},
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
      {{gemini + "strict_ddp_mode=true", gemini + "shard_param_frac=1"}, "set only one"},
      {{gemini + "max_prefetch=1", gemini + "shard_param_frac=0"}, "changes nothing"},
      {{gemini + "hidden_dim=64", gemini + "chunk_config=1000"}, "changes nothing when chunk_config gives the size"},
      {{gemini + "extra_dp_size=2"}, "3 ranks cannot be 2 groups", 3},
      {{gemini + "force_outputs_fp32=false"}, "changes nothing in fp32"},
      {{gemini + "chunk_config=0"}, "must be at least 1"},
      {{gemini + "placement_policy=auto"}, "set run.memory_mb to what a rank's tensors may take"},
      {{gemini + "placement_policy=auto", gemini + "offload_optim_frac=0.5"},
       "is what placement_policy = \"auto\" decides"},
      {{gemini + "steady_cuda_cap_ratio=0.5"}, "it is for auto; remove it"},
      {{gemini + "memstats=some.json"}, "it is for auto; remove it"},
      {{gemini + "placement_policy=auto", "run.memory_mb=100", gemini + "memstats=nowhere/some.json"},
       "there is no folder \"nowhere\""},
      {{gemini + "pin_memory=false"}, "changes nothing where nothing is offloaded"},
  };
  for (const auto& [sets, says, ranks] : rows) {
    SCOPED_TRACE(sets.front());
    const auto plugin = sets.front().rfind(gemini, 0) == 0 ? "gemini" : "low_level_zero";
    std::vector<std::string> words{"--set", std::string("parallel.plugin=") + plugin};
    for (const auto& set : sets) words.insert(words.end(), {"--set", set});
    expect_only_refusal(run.train(ranks, words), 2, says);
    EXPECT_FALSE(fs::exists(run.dir()));
  }
}

TEST(Plugins, TakeWhatTrainSaysFromTheirSection) {
  const SmallRun run;
  const auto outcome =
      run_process({TRIREME_COMMAND, "config", run.config, "--print", "--set", "parallel.plugin=low_level_zero", "--set",
                   "plugin.low_level_zero.precision=bf16", "--set", "plugin.low_level_zero.max_norm=0.5"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  const auto train = outcome.out.substr(outcome.out.find("[train]"), outcome.out.find("[optimizer]"));
  EXPECT_NE(train.find("precision = \"bf16\""), std::string::npos) << outcome.out;
  EXPECT_NE(train.find("max_norm = 0.5"), std::string::npos) << outcome.out;
}

}  // namespace
}  // namespace trireme::tests
