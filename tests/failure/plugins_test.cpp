// Sections of plugins: what their keys choose, and which keys of [train] they may hold. refusals_test.cpp tests what
// they refuse.
#include <fstream>
#include <map>

#include "tests/failure/small_run.h"

namespace trireme::tests {
namespace {

TEST(Plugins, ReportWhichKernelsTheyChose) {
  const SmallRun run;
  const auto line = [&](const std::vector<std::string>& sets) {
    std::vector<std::string> arguments;
    for (const auto& set : sets) arguments.insert(arguments.end(), {"--set", set});
    const auto result = run.train(2, arguments);
    EXPECT_EQ(result.code, 0) << result.err;
    const auto at = result.out.find("kernels (");
    return at == std::string::npos ? "" : result.out.substr(at, result.out.find('\n', at) - at);
  };
  const std::string hybrid = "plugin.hybrid_parallel.";
  EXPECT_EQ(line({"parallel.tp=2"}), "");
  // The option enables what was measured to be faster: on a CPU, one pass for dropout and residual sum.
  EXPECT_EQ(
      line({"parallel.tp=2", hybrid + "enable_all_optimization=true"}),
      "kernels (CPU): attention by LibTorch's flash kernel; enable_all_optimization changes nothing for this model "
      "on this device");
  EXPECT_EQ(line({"parallel.tp=2", "model.dropout=0.1", hybrid + "enable_all_optimization=true"}),
            "kernels (CPU): attention by LibTorch's flash kernel; bias and GELU by LibTorch's kernels, dropout and "
            "residual sum in one pass");
  EXPECT_EQ(line({"parallel.tp=2", hybrid + "enable_fused_normalization=true"}),
            "kernels (CPU): residual sum and layer norm by LibTorch's kernels");
  EXPECT_EQ(line({"parallel.tp=2", "parallel.sp_mode=ring", hybrid + "enable_flash_attention=false"}),
            "kernels (CPU): attention scores are materialized");
  EXPECT_EQ(line({"parallel.sp=2", "parallel.sp_mode=ring_attn", "train.enable_fused_normalization=true"}),
            "kernels (CPU): residual sum and layer norm by LibTorch's kernels");
  // Under autocast nothing is fused, and the line says so.
  EXPECT_EQ(
      line({"train.precision=bf16", "train.enable_fused_normalization=true"}),
      "kernels (CPU): norms, GELU and dropout are not fused: in bf16, this plugin uses autocast, which chooses the "
      "dtype of each step; low_level_zero, gemini and hybrid_parallel compute in bf16 without it");
  EXPECT_EQ(line({"train.precision=bf16", "train.enable_fused_normalization=true", "parallel.plugin=low_level_zero"}),
            "kernels (CPU): residual sum and layer norm by LibTorch's kernels");
  EXPECT_EQ(line({"parallel.pp=2", "train.attention_kernel=flash"}),
            "kernels (CPU): attention by LibTorch's flash kernel");
}

// The system would load a truncated file, and end the process at the first access to a missing byte.
TEST(Plugins, RefuseATruncatedFile) {
  const SmallRun run;
  const auto cut = run.folder.path() + "/cut.so";
  const fs::path whole = fs::path(TRIREME_COMMAND).parent_path().parent_path() / "lib/trireme/plugins/gemini.so";
  const auto size = fs::file_size(whole);
  for (const std::uintmax_t bytes : {std::uintmax_t{100}, std::uintmax_t{1000}, size / 4, size / 2}) {
    fs::copy_file(whole, cut, fs::copy_options::overwrite_existing);
    fs::resize_file(cut, bytes);
    expect_only_refusal(run.train(1, {"--set", "parallel.plugin=" + cut}), 2,
                        "parallel.plugin=" + cut + ": " + cut + ": ");
  }
}

// Every row of docs/from-colossalai.md names a key that exists, or one that is refused with a reason.
TEST(Plugins, ThePageForColossalAiMatchesTheKeys) {
  const auto known = run_process({TRIREME_COMMAND, "config", "--explain-all"}).out;
  std::ifstream page(TRIREME_SOURCE_DIR "/docs/from-colossalai.md");
  const std::map<std::string, std::string> plugins{{"## TorchDDPPlugin", "torch_ddp"},
                                                   {"## LowLevelZeroPlugin", "low_level_zero"},
                                                   {"## GeminiPlugin", "gemini"},
                                                   {"## HybridParallelPlugin", "hybrid_parallel"}};
  std::string plugin;
  std::map<std::string, int> rows;
  for (std::string line; std::getline(page, line);) {
    if (line.starts_with("## ")) plugin = plugins.contains(line) ? plugins.at(line) : "";
    if (!line.starts_with("| `") || plugin.empty()) continue;
    SCOPED_TRACE(line);
    ++rows[plugin];
    const auto end = line.find("` | ");
    const auto key = "plugin." + plugin + "." + line.substr(3, end - 3);
    const auto ours = line.substr(end + 4);
    if (ours.starts_with("none: ")) {
      EXPECT_NE(known.find("\n" + key + "\n  does not exist: "), std::string::npos);
    } else {
      EXPECT_TRUE(ours.starts_with("`" + key + "`"));
      EXPECT_NE(known.find("\n" + key + "\n"), std::string::npos);
      EXPECT_EQ(known.find("\n" + key + "\n  does not exist: "), std::string::npos);
    }
    for (const std::string section : {"`plugin.", "`train.", "`parallel.", "`run."})
      for (auto at = ours.find(section); at != std::string::npos; at = ours.find(section, at + 1)) {
        const auto other = ours.substr(at + 1, ours.find('`', at + 1) - at - 1);
        EXPECT_NE(known.find("\n" + other + "\n"), std::string::npos) << other;
      }
  }
  // Colossal-AI's constructors have these numbers of arguments.
  EXPECT_EQ(rows, (std::map<std::string, int>{
                      {"torch_ddp", 7}, {"low_level_zero", 22}, {"gemini", 40}, {"hybrid_parallel", 47}}));
  expect_only_refusal(SmallRun().train(2, {"--set", "parallel.plugin=gemini", "--set", "plugin.gemini.tp_size=2"}), 2,
                      "no key \"tp_size\" in [plugin.gemini]: set parallel.plugin = \"hybrid_parallel\"");
}

// With verbose = true each bucket or chunk has a line with its parameters and this rank's share.
TEST(Plugins, PrintTheirBucketsWithVerbose) {
  const SmallRun run;
  for (const auto& [plugin, word] :
       {std::pair{"low_level_zero", "bucket 0"}, {"gemini", "chunk 0"}, {"hybrid_parallel", "bucket 0"}}) {
    const auto result = run.train(2, {"--set", std::string("parallel.plugin=") + plugin, "--set",
                                      std::string("plugin.") + plugin + ".verbose=true", "--set", "train.max_steps=1"});
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_NE((result.out + result.err).find(word), std::string::npos) << plugin << result.out << result.err;
  }
}

// The header says how many replicas there are; the plugin is listed with its key.
TEST(Plugins, RunReplicasInOneProcess) {
  const SmallRun run;
  for (const auto& [replicas, header] : {std::pair{"3", "1 rank, 3 replicas"}, {"1", "data_parallel: replicas = 1"}}) {
    const auto result =
        run.train(1, {"--set", "parallel.plugin=data_parallel", "--set",
                      std::string("plugin.data_parallel.replicas=") + replicas, "--set", "train.ema_decay=0.9"});
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_NE(result.out.find(header), std::string::npos) << result.out;
  }
  EXPECT_NE(run_process({TRIREME_COMMAND, "plugins"}).out.find("data_parallel"), std::string::npos);
  EXPECT_NE(run_process({TRIREME_COMMAND, "plugins", "data_parallel"}).out.find("replicas"), std::string::npos);
}

// The configuration that a run writes can be run, and verified in other layouts.
TEST(Plugins, AcceptTheirOwnResolvedFile) {
  const SmallRun run;
  for (const std::vector<std::string>& sets :
       {std::vector<std::string>{"parallel.tp=2"},
        {"parallel.pp=2", "parallel.schedule=zb_h1"},
        {"parallel.sp=2", "parallel.sp_mode=all_to_all"},
        {"parallel.zero=3"},
        {"parallel.zero=3", "plugin.hybrid_parallel.placement_policy=auto", "run.memory_mb=100"},
        {"parallel.zero=3", "plugin.hybrid_parallel.max_prefetch=2", "train.attention_kernel=math"},
        {"parallel.plugin=torch_ddp", "train.recompute=true", "train.recompute_layers_per_stage=[2]"},
        {"parallel.tp=2", "plugin.hybrid_parallel.enable_all_optimization=true", "train.recompute=true",
         "plugin.hybrid_parallel.recompute_ratio=0.5"},
        {"parallel.plugin=gemini"},
        {"parallel.plugin=gemini", "plugin.gemini.placement_policy=auto", "run.memory_mb=100"},
        {"parallel.plugin=low_level_zero", "plugin.low_level_zero.stage=2"}}) {
    std::vector<std::string> arguments{TRIREME_COMMAND, "config", run.config, "--print"};
    for (const auto& set : sets) arguments.insert(arguments.end(), {"--set", set});
    const auto printed = run_process(arguments);
    ASSERT_EQ(printed.code, 0) << printed.err;
    const auto file = run.folder.write("resolved.toml", printed.out);
    const auto again = run_process({TRIREME_COMMAND, "train", file, "--ranks", "2", "--set", "run.dir=" + run.dir(),
                                    "--set", "train.max_steps=1"});
    EXPECT_EQ(again.code, 0) << sets.front() << again.err;
    EXPECT_EQ(run_process({TRIREME_COMMAND, "verify", file, "--layouts", "dp=1;tp=2", "--steps", "1"}).code, 0);
  }
}

// A mistake in the section of a plugin that is not in use is reported too.
TEST(Plugins, CheckTheSectionsOfUnusedPlugins) {
  const SmallRun run;
  for (const auto& [set, says] :
       {std::pair{"low_level_zero.stge=2", "no key \"stge\" in [plugin.low_level_zero]; did you mean \"stage\"?"},
        {"low_level_zero.stage=two", "must be an integer, not a string"},
        {"gemini.shard_param_frac=2", "must be at least 0 and at most 1"},
        {"low_level_zero.stage=2",
         "belongs to the plugin \"low_level_zero\", but this run uses \"torch_ddp\"; remove it"},
        {"low_level_zer.stage=2", "[plugin.low_level_zer] is not the section of any plugin; did you mean"}})
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
  expect_only_refusal(check("stage = 2\n", ""), 2, "has no effect, because this run uses the plugin \"torch_");
  const auto good = check("stage = 2\n", named);
  EXPECT_EQ(good.code, 0) << good.err;
}

TEST(Plugins, TakeKeysOfTrainFromTheirSection) {
  const SmallRun run;
  const auto result =
      run_process({TRIREME_COMMAND, "config", run.config, "--print", "--set", "parallel.plugin=low_level_zero", "--set",
                   "plugin.low_level_zero.precision=bf16", "--set", "plugin.low_level_zero.max_norm=0.5", "--set",
                   "plugin.low_level_zero.norm_type=inf"});
  EXPECT_EQ(result.code, 0) << result.err;
  const auto train = result.out.substr(result.out.find("[train]"), result.out.find("[optimizer]"));
  EXPECT_NE(train.find("precision = \"bf16\""), std::string::npos) << result.out;
  EXPECT_NE(train.find("max_norm = 0.5"), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("norm_type = \"inf\""), std::string::npos) << result.out;
}

// Errors about keys of [train] that are set in a plugin's section point to that section, also for rules over several
// keys.
TEST(Plugins, ErrorsPointToKeysOfTrainInTheirSection) {
  const SmallRun run;
  const auto check = [&](const std::string& text) {
    return run_process({TRIREME_COMMAND, "train", run.folder.write("placed.toml", std::string(kModel) + kLeaves + text),
                        "--ranks", "1", "--set", "run.dir=" + run.dir()});
  };
  const std::string gemini = "[parallel]\nplugin = \"gemini\"\n[plugin.gemini]\n";
  for (const auto& [text, says] :
       {std::pair{gemini + "recompute_ratio = 0.5\n", ": plugin.gemini.recompute_ratio = 0.5: has no effect without"},
        {"[train]\nrecompute = true\n" + gemini + "recompute_layers_per_stage = [9]\n",
         ": plugin.gemini.recompute_layers_per_stage = [9]: stage 0 has 3 blocks; choose at most 3"},
        {gemini + "attention_kernel = \"cudnn\"\n",
         ": plugin.gemini.attention_kernel = \"cudnn\": LibTorch has no cudnn attention"},
        {"[train]\nattention_kernel = \"cudnn\"\n", ": train.attention_kernel = \"cudnn\": LibTorch has no cudnn"},
        {gemini + "initial_scale = 8.0\n", ": plugin.gemini.initial_scale = 8.0: has no effect with precision ="}}) {
    const auto result = check(text);
    expect_only_refusal(result, 2, says);
    EXPECT_NE(result.err.find("placed.toml:"), std::string::npos) << result.err;
  }
}

}  // namespace
}  // namespace trireme::tests
