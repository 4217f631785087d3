// A training over Open MPI on two hosts with two ranks each, which network and UTS namespaces of this machine play.
#include "tests/command/launch.h"
#include "tests/command/metrics.h"

namespace trireme::tests {
namespace {

const std::string kTwoHosts = TRIREME_SOURCE_DIR "/examples/resnet_imagefolder/two_hosts.sh";

/// Whether this machine can play two hosts.
bool has_two_hosts() { return run_process({kTwoHosts, "true"}).code == 0; }
#define TRIREME_NEEDS_TWO_HOSTS() \
  if (!has_two_hosts()) GTEST_SKIP() << "NOT TESTED: " << run_process({kTwoHosts, "true"}).err

std::vector<double> losses_of(const SmallRun& run) {
  std::vector<double> losses;
  for (const auto& line : metrics_of(run.dir(), "step")) losses.push_back(line.at("loss"));
  return losses;
}

ProcessResult on_two_hosts(const std::vector<std::string>& program) {
  std::vector<std::string> command{
      kTwoHosts, TRIREME_TEST_MPIRUN,   "-n", "4", "--host", "a:2,b:2", "--bind-to", "none", "--quiet",
      "--mca",   "mpi_yield_when_idle", "1"};
  command.insert(command.end(), program.begin(), program.end());
  return run_process(command);
}

TEST(TwoHosts, TrainAsOneProcessDoes) {
  TRIREME_NEEDS_TWO_HOSTS();
  const std::vector<std::string> in_fp64{"--set", "train.precision=fp64"};
  const SmallRun alone;
  ASSERT_EQ(alone.train(1, in_fp64).code, 0);
  const auto expected = losses_of(alone);
  ASSERT_EQ(expected.size(), 6U);
  const SmallRun run;
  const auto result = on_two_hosts({TRIREME_COMMAND, "train", run.config, "--set", "train.precision=fp64", "--set",
                                    "parallel.zero=1", "--set", "parallel.tp=2"});
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_NE(result.out.find("mpirun, 4 ranks on 2 hosts"), std::string::npos) << result.out;
  const auto losses = losses_of(run);
  ASSERT_EQ(losses.size(), expected.size());
  for (std::size_t step = 0; step < losses.size(); ++step) EXPECT_NEAR(losses[step], expected[step], 1e-9);
}

TEST(TwoHosts, ADeadRankEndsTheRunWithOneMessage) {
  TRIREME_NEEDS_TWO_HOSTS();
  const SmallRun run(kLeaves, "epochs = 100000\nglobal_batch = 8\n");
  const auto script = "[ $OMPI_COMM_WORLD_RANK != 3 ] || { me=$$; (until [ -s " + run.dir() +
                      "/metrics.jsonl ]; do sleep 0.1; done; kill -9 $me) & }; exec " TRIREME_COMMAND " train " +
                      run.config;
  const auto result = on_two_hosts({"sh", "-c", script});
  EXPECT_EQ(result.code, 137) << result.out << result.err;  // mpirun's own
  const auto lines = lines_of(result.err);
  EXPECT_EQ(std::count_if(lines.begin(), lines.end(), [](const auto& line) { return line.starts_with("trireme: "); }),
            1)
      << result.err;
  EXPECT_NE(result.err.find("rank 3 has died: its process is gone"), std::string::npos) << result.err;
  EXPECT_TRUE(all_gone(run.config));
}

}  // namespace
}  // namespace trireme::tests
