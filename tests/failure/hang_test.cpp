// A rank that is killed, stopped, late or confused: one table says so soon after the deadline, the exit code is that of
// a communication error, and nothing is left: no process, no file. An error of a rank's own is said alone.
// TRIREME_TEST_REPEAT=25 repeats each case.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/command/launch.h"

namespace trireme::tests {
namespace {

// Seconds. On a loaded machine a rank that has not failed may come late, too, and the ranks take longer to end.
constexpr double kDeadline = 3, kMargin = 60;
constexpr int kOfData = 3;  // the exit code

enum class By { launch, mpirun };

const char* name_of(By by) { return by == By::launch ? "launch" : "mpirun"; }

struct Case {
  By by;
  std::string how, check;
  std::vector<std::string> expected;  ///< texts that standard error contains, an error of its own once
  int code = 5;
  double deadline = kDeadline;
};

int repeats() {
  const char* text = std::getenv("TRIREME_TEST_REPEAT");
  return text == nullptr ? 1 : std::max(1, std::atoi(text));
}

struct Rank {
  int pid = 0;
  double time = 0;
  std::string folder;
};

/// What the ranks have printed before the failure.
std::vector<Rank> ranks_in(const std::string& out) {
  std::vector<Rank> ranks;
  for (const auto& line : lines_of(out)) {
    int number = 0, pid = 0;
    double time = 0;
    char folder[256] = {};
    if (std::sscanf(line.c_str(), "rank %d pid %d time %lf folder %255s", &number, &pid, &time, folder) >= 3)
      ranks.push_back({pid, time, folder});
  }
  return ranks;
}

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::vector<std::string> command_of(const Case& test) {
  std::vector<std::string> command;
  if (test.by == By::mpirun)
    command = {TRIREME_TEST_MPIRUN, "-n", "3", "--oversubscribe", "--allow-run-as-root", "--bind-to", "none"};
  else
    command = {TRIREME_COMMAND, "launch", "-n", "3"};
  command.insert(command.end(), {HANG_PROGRAM, test.how, std::to_string(test.deadline), test.check});
  return command;
}

void expect_nothing_left(const std::vector<Rank>& ranks) {
  EXPECT_EQ(ranks.size(), 3U);
  for (const auto& rank : ranks) {
    EXPECT_TRUE(wait_until([&] { return !runs(rank.pid); })) << "process " << rank.pid << " is left";
    EXPECT_FALSE(rank.folder.empty());
    EXPECT_FALSE(std::filesystem::exists(rank.folder)) << rank.folder << " is left";
  }
}

void run_case(const Case& test) {
  SCOPED_TRACE(std::string(name_of(test.by)) + " " + test.how + " " + test.check);
  const bool failed_before = ::testing::Test::HasFailure();
  const auto result = run_process(command_of(test), {.environment = {"OMP_NUM_THREADS=1"}});
  const auto end = seconds_now();
  const auto ranks = ranks_in(result.out);
  EXPECT_FALSE(result.hung);
  EXPECT_EQ(result.code, test.expected.empty() ? 0 : test.code);
  const bool has_table = !test.expected.empty() && test.code != kOfData;  // an error of its own is said alone
  EXPECT_EQ(count_of(result.err, "in operation"), has_table ? 1 : 0);
  for (const auto& text : test.expected) {
    const int count = count_of(result.err, text);
    EXPECT_TRUE(has_table ? count > 0 : count == 1) << text;
  }
  if (test.expected.empty() && test.by != By::mpirun) {
    EXPECT_EQ(result.err, "");
  }
  double begin = 0;
  for (const auto& rank : ranks) begin = std::max(begin, rank.time);
  EXPECT_LT(end - begin, (test.how == "slow" ? 2.5 : 1) * test.deadline + kMargin);
  expect_nothing_left(ranks);
  if (!failed_before && ::testing::Test::HasFailure()) {
    ADD_FAILURE() << "exit code " << result.code << "\n--- stdout\n" << result.out << "--- stderr\n" << result.err;
  }
}

void run_cases(const std::vector<Case>& cases) {
  for (int turn = 0; turn < repeats(); ++turn)
    for (const auto& test : cases) run_case(test);
}

TEST(Hang, UnderOurLauncher) {
  run_cases({
      {By::launch,
       "kill",
       "",
       {"trireme: rank 1 ", " was killed by signal 9", "  1     dead ", "rank 1 has not entered all_reduce world #21"}},
      {By::launch,
       "stop",
       "",
       {"within 3 s", "  1     stopped ",
        "rank 1 has not entered all_reduce world #21 [16, 4] float32: it "
        "is stopped"}},
      {By::launch,
       "never",
       "",
       {"within 3 s", "  1     running ", "rank 1 has not entered all_reduce world #21", "no operation"}},
      {By::launch,
       "other",
       "",
       {"within 3 s",
        "rank 1 called broadcast world #21 root 0 [16, 4] float32 where rank 0 called "
        "all_reduce world #21 [16, 4] float32"}},
      {By::launch, "other", "check", {"rank 1 (world rank 1) calls broadcast of [16, 4] float32, root 0"}},
      {By::launch, "slow", "", {}},
      {By::launch, "shape", "check", {"rank 1 (world rank 1) calls all_reduce (sum) of [64, 4] float32"}},
      {By::launch, "message", "", {"recv world from 0"}},
      {By::launch, "none", "check", {}},
      {By::launch, "error", "", {"hang_program: rank 1: a file is broken\n"}, kOfData},
      {By::launch, "same", "", {"hang_program: a file is broken\n"}, kOfData},
  });
}

TEST(Hang, UnderTheUsersMpirun) {
  // It has an exit code of its own after a rank's death. The deadline of ranks that wait for one with an error is over
  // before that error would be said if its rank waited for rank 0.
  run_cases({{By::mpirun, "kill", "", {"rank 1 has died", "  1     dead "}, 137},
             {By::mpirun, "stop", "", {"  1     stopped ", "it is stopped"}},
             {By::mpirun, "other", "", {"rank 1 called broadcast world #21 root 0 [16, 4] float32"}},
             {By::mpirun, "other", "check", {"rank 1 (world rank 1) calls broadcast of [16, 4] float32, root 0"}},
             {By::mpirun, "slow", "", {}},
             {By::mpirun, "none", "", {}},
             {By::mpirun, "error", "", {"hang_program: rank 1: a file is broken\n"}, kOfData, 2},
             {By::mpirun, "same", "", {"a file is broken\n"}, kOfData}});
}

}  // namespace
}  // namespace trireme::tests
