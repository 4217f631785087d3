// Sections of plugins: what their keys choose, and which keys of [train] they may hold. What they refuse is in
// tests/unit/setup/refusals_test.cpp.
#include <fstream>
#include <map>
#include <set>

#include "tests/command/small_run.h"

namespace trireme::tests {
namespace {

TEST(Plugins, ReportWhichKernelsTheyChose) {
  const SmallRun run;
  const auto line = [&](const std::vector<std::string>& sets) {
    std::vector<std::string> arguments;
    for (const auto& set : sets) arguments.insert(arguments.end(), {"--set", set});
    const bool is_cut = sets.front().starts_with("parallel.") && sets.front().ends_with("=2");
    const auto result = run.train(is_cut ? 2 : 1, arguments);
    EXPECT_EQ(result.code, 0) << result.err;
    const auto at = result.out.find("kernels (");
    return at == std::string::npos ? "" : result.out.substr(at, result.out.find('\n', at) - at);
  };
  const std::string hybrid = "plugin.hybrid_parallel.", one = "parallel.plugin=hybrid_parallel";
  EXPECT_EQ(line({"parallel.tp=2"}), "");
  // The option enables what was measured to be faster: on a CPU, one pass for dropout and residual sum.
  EXPECT_EQ(
      line({one, hybrid + "enable_all_optimization=true"}),
      "kernels (CPU): attention by LibTorch's flash kernel; enable_all_optimization changes nothing for this model "
      "on this device");
  EXPECT_EQ(line({"parallel.tp=2", "model.dropout=0.1", hybrid + "enable_all_optimization=true"}),
            "kernels (CPU): attention by LibTorch's flash kernel; bias and GELU by LibTorch's kernels, dropout and "
            "residual sum in one pass");
  EXPECT_EQ(line({one, hybrid + "enable_fused_normalization=true"}),
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

// The configuration that a run writes can be run, and verified in other layouts. Those with the same plugin that differ
// in [parallel] and [plugin.*] alone, the last sections, are the same to `verify`, which reads neither.
TEST(Plugins, AcceptTheirOwnResolvedFile) {
  const SmallRun run;
  std::set<std::string> verified;
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
    const auto parallel = printed.out.find("\n[parallel]\n"), plugin = printed.out.find("\n[plugin.", parallel);
    ASSERT_NE(plugin, std::string::npos) << printed.out;
    const auto others =
        printed.out.substr(0, parallel) + printed.out.substr(plugin, printed.out.find(']', plugin) - plugin);
    if (!verified.insert(others).second) continue;
    EXPECT_EQ(run_process({TRIREME_COMMAND, "verify", file, "--layouts", "dp=1;tp=2", "--steps", "1"}).code, 0);
  }
}

// A mistake in the section of a plugin that is not in use is reported too.
TEST(Plugins, CheckTheSectionsOfUnusedPlugins) {
  const SmallRun run;
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

}  // namespace
}  // namespace trireme::tests
