// Counts the messages and communicators of a run of one step over Open MPI, start and end included, on 2 to 8 ranks
// (TRIREME_TEST_MOST_RANKS=32: to 32). The messages grow like N log N. docs/scale.md describes what follows for
// thousands of ranks.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>

#include "tests/command/small_run.h"

namespace trireme::tests {
namespace {

struct Counts {
  double messages = 0, bytes = 0, most_of_a_rank = 0, communicators = 0;
};

Counts count(int ranks, const std::string& layout) {
  const SmallRun run(kLeaves, "epochs = 1\nglobal_batch = 32\nmax_steps = 1\n");
  const auto file = run.dir() + ".counts";
  ProcessOptions options;
  options.environment = {"LD_PRELOAD=" TRIREME_COUNT_MPI, "COUNT_FILE=" + file, "OMP_NUM_THREADS=1"};
  const auto result = run_process(
      {TRIREME_TEST_MPIRUN, "-n", std::to_string(ranks), "--oversubscribe", "--allow-run-as-root", "--bind-to", "none",
       "--quiet", "--mca", "mpi_yield_when_idle", "1", TRIREME_COMMAND, "train", run.config, "--set", layout},
      options);
  EXPECT_EQ(result.code, 0) << result.err;
  Counts counts;
  std::ifstream(file) >> counts.messages >> counts.bytes >> counts.most_of_a_rank >> counts.communicators;
  std::printf("%2d ranks, %s: %6.0f messages, at most %4.0f per rank, %9.0f bytes, %.0f communicators per rank\n",
              ranks, layout.c_str(), counts.messages, counts.most_of_a_rank, counts.bytes, counts.communicators);
  return counts;
}

double n_log_n(int n) { return n * std::log2(n); }

TEST(Scale, messages_of_a_run_grow_like_n_log_n) {
  std::map<int, Counts> by_ranks;
  const char* wanted = std::getenv("TRIREME_TEST_MOST_RANKS");
  const int most = wanted == nullptr ? 8 : std::atoi(wanted);
  for (int ranks = 2; ranks <= most; ranks *= 2) {
    const auto counts = by_ranks[ranks] = count(ranks, "parallel.tp=2");
    ASSERT_GT(counts.messages, 0) << "nothing was counted";
    // There is one each for all ranks, for agreements on groups, for dp and for tp.
    EXPECT_LE(counts.communicators, 4) << ranks << " ranks";
  }
  EXPECT_LE(by_ranks[most].messages, 2.7 * by_ranks[most / 2].messages);
  for (int ranks = 8; ranks <= most; ranks *= 2) {
    const auto &full = by_ranks[ranks], &half = by_ranks[ranks / 2];
    EXPECT_LE(full.messages / n_log_n(ranks), 1.05 * half.messages / n_log_n(ranks / 2)) << ranks << " ranks";
    // Rank 0 receives a few texts from each rank, but sends no more messages than others.
    EXPECT_LE(full.most_of_a_rank, 1.5 * half.most_of_a_rank) << ranks << " ranks";
  }
}

}  // namespace
}  // namespace trireme::tests
