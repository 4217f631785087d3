// Tests what layouts save, and what errors advise, under a limit on the memory of a rank's tensors. Gemini trains a
// model three times as large as plain data parallelism can hold: on four ranks, and on two with its optimizer state in
// host memory.
#include <fstream>
#include <iterator>
#include <regex>

#include "tests/command/small_run.h"

namespace trireme::tests {
namespace {

/// Trains `layers` blocks of 0.79 MB each under a limit of `mib` MiB per rank.
ProcessResult train(const SmallRun& run, int ranks, int layers, double mib, std::vector<std::string> more) {
  more.insert(more.end(),
              {"--set", "model.hidden_size=128", "--set", "model.intermediate_size=512", "--set",
               "model.num_layers=" + std::to_string(layers), "--set", "run.memory_mb=" + std::to_string(mib), "--set",
               "run.keep_checkpoints=0", "--set", "train.max_steps=3"});
  return run.train(ranks, more);
}

constexpr double kLimit = 16;  // MiB: plain data parallelism needs 16 bytes per parameter

TEST(Memory, GeminiTrainsThreeTimesWhatDataParallelismCanHold) {
  const SmallRun run;
  const auto fits = [](const ProcessResult& result) { EXPECT_EQ(result.code, 0) << result.err; };
  const auto does_not = [](const ProcessResult& result) {
    expect_refusal(result, 4, "out of memory (run.memory_mb: ");
  };
  fits(train(run, 2, 4, kLimit, {}));
  does_not(train(run, 2, 6, kLimit, {}));
  does_not(train(run, 4, 12, kLimit, {}));
  const std::vector<std::string> gemini{"--set", "parallel.plugin=gemini"};
  fits(train(run, 4, 12, kLimit, gemini));
  does_not(train(run, 2, 12, kLimit, gemini));
  auto offload = gemini;
  offload.insert(offload.end(), {"--set", "plugin.gemini.offload_optim_frac=1"});
  fits(train(run, 2, 12, kLimit, offload));
}

// Chunks that fill the device in training leave it before an evaluation, which needs more memory than a step here.
TEST(Memory, AutoMakesRoomForAnEvaluation) {
  const SmallRun run("[data]\nname = \"leaves\"\nimages = 1600\nimage_size = 32\n");
  const auto result = train(run, 2, 4, 10,
                            {"--set", "parallel.plugin=gemini", "--set", "plugin.gemini.placement_policy=auto", "--set",
                             "plugin.gemini.gpu_margin_mem_ratio=1", "--set", "plugin.gemini.steady_cuda_cap_ratio=1",
                             "--set", "train.eval_batch=80"});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_NE(result.err.find("slices of 6 of 6 chunks and optimizer state of 6"), std::string::npos) << result.err;
}

// Neither LibTorch's libraries nor OpenMP's threads end a run without a word.
TEST(Memory, LimitsOfTheShellAreSaid) {
  const SmallRun run;
  const auto limited = [&](const std::string& limit, const std::vector<std::string>& more) {
    std::vector<std::string> arguments{"/bin/sh",
                                       "-c",
                                       "ulimit -v " + limit + "; exec \"$@\"",
                                       "sh",
                                       TRIREME_COMMAND,
                                       "train",
                                       run.config,
                                       "--set",
                                       "train.max_steps=1"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_process(arguments);
  };
  expect_refusal(limited("450000", {}), 4,
                 "this process may use 439 MiB of address space, but LibTorch alone needs 512");
  expect_refusal(limited("1600000", {"--set", "run.threads=500"}), 4,
                 "500 threads need 1015 of the system's, but only ");
}

// The message advises only what helps where memory ran out.
TEST(Memory, TheAdviceFitsWhereMemoryRanOut) {
  const SmallRun run("[data]\nname = \"leaves\"\nimages = 1600\nimage_size = 32\n");
  const auto stats = run.folder.path() + "/stats.json";
  const std::vector<std::string> automatic{"--set", "parallel.plugin=gemini",
                                           "--set", "plugin.gemini.placement_policy=auto",
                                           "--set", "plugin.gemini.memstats=" + stats};
  ASSERT_EQ(train(run, 2, 4, 12, automatic).code, 0);
  const auto again = train(run, 2, 4, 12, automatic);
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_NE(again.out.find("with the statistics in " + stats + ": weight slices of 6 of 6 chunks"), std::string::npos)
      << again.out;
  auto other = automatic;
  other.insert(other.end(), {"--set", "model.dropout=0.1"});
  expect_refusal(train(run, 2, 4, 12, other), 2,
                 "was measured in another run: model.dropout = 0.1 (in the file: 0.0); remove");
  // The figures are set to zero, as if the measured run had needed less memory.
  std::ifstream in(stats);
  const std::string text((std::istreambuf_iterator<char>(in)), {});
  run.folder.write("stats.json",
                   std::regex_replace(text, std::regex("\"(other|gathered|update)\": [0-9]+"), "\"$1\": 0"));
  auto full = automatic;
  full.insert(full.end(), {"--set", "plugin.gemini.gpu_margin_mem_ratio=1"});
  expect_refusal(train(run, 2, 4, 8, full), 4,
                 "set train.recompute = true, lower plugin.gemini.steady_cuda_cap_ratio, remove " + stats);

  ASSERT_EQ(train(run, 1, 4, 40, {}).code, 0);
  const auto in_evaluation = [](const ProcessResult& result) {
    expect_refusal(result, 4, " in an evaluation: set train.eval_batch to less than 240");
    EXPECT_EQ(result.err.find("recompute"), std::string::npos);
  };
  in_evaluation(run_process({TRIREME_COMMAND, "eval", run.dir(), run.config, "--set", "run.memory_mb=16", "--set",
                             "train.eval_batch=240", "--set", "model.num_layers=4", "--set", "model.hidden_size=128",
                             "--set", "model.intermediate_size=512"}));
  in_evaluation(train(run, 1, 4, 25, {"--set", "train.eval_batch=240", "--set", "train.micro_batch=1"}));
}

}  // namespace
}  // namespace trireme::tests
