// What a layout saves, under a limit on the memory of a rank's tensors: a model three times as large as plain data
// parallelism can hold is trained by gemini on four ranks, and on two with its optimizer's state in host memory.
#include "tests/failure/small_run.h"

namespace trireme::tests {
namespace {

/// A training of blocks of 0.79 MB under `mib` MiB a rank.
Outcome train(const SmallRun& run, int ranks, int layers, double mib, std::vector<std::string> more) {
  more.insert(more.end(),
              {"--set", "model.hidden_size=128", "--set", "model.intermediate_size=512", "--set",
               "model.num_layers=" + std::to_string(layers), "--set", "run.memory_mb=" + std::to_string(mib), "--set",
               "run.keep_checkpoints=0", "--set", "train.max_steps=3"});
  return run.train(ranks, more);
}

constexpr double kLimit = 21;  // MiB: plain data parallelism holds 16 bytes a parameter, and a gradient's bucket

TEST(Memory, ThreeTimesWhatPlainDataParallelismCanHold) {
  const SmallRun run;
  const auto fits = [](const Outcome& outcome) { EXPECT_EQ(outcome.code, 0) << outcome.err; };
  const auto does_not = [](const Outcome& outcome) { expect_refusal(outcome, 4, "out of memory (run.memory_mb: "); };
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

}  // namespace
}  // namespace trireme::tests
