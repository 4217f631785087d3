// spawn() from a program of its own: what ranks see, results, errors, and that nothing is left. The number of calls in
// the test for leaks is 8 (3 with worlds), or what SPAWN_TEST_CALLS says.
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <thread>

#include "tests/command/refusal.h"

namespace trireme::tests {
namespace {

ProcessResult run(std::vector<std::string> arguments, const ProcessOptions& options = {}) {
  arguments.insert(arguments.begin(), SPAWN_PROGRAM);
  return run_process(arguments, options);
}

bool no_rank_is_left() {
  return wait_until([] { return processes_with(SPAWN_PROGRAM).empty(); });
}

TEST(Spawn, RunsTheFunctionOnEachRank) {
  const auto result = run({"work"});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  auto lines = lines_of(result.out);
  std::sort(lines.begin(), lines.end());
  EXPECT_EQ(lines,
            (std::vector<std::string>{"between, changed 1", "first 0/2 0/2 a capture", "first 1/2 1/2 a capture",
                                      "main", "result 100001 0", "result 100001 1", "result 100001 2", "world of 1"}))
      << result.out;
}

TEST(Spawn, ARankStartsAsTheProgramDid) {
  const auto result = run({"start", "", "an argument  with spaces"}, {.environment = {"SPAWN_TEST_VARIABLE=original"}});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.out, "an argument  with spaces original\nan argument  with spaces changed 0 spawn\n");
}

TEST(Spawn, LeavesNothing) {
  const char* wanted = std::getenv("SPAWN_TEST_CALLS");
  const std::string many = wanted == nullptr ? "8" : wanted, few = wanted == nullptr ? "3" : wanted;
  for (const auto& [program, calls] :
       {std::pair{std::string(), "leak " + many}, {"", "leak_worlds " + few}, {"trap '' CHLD; ", "leak 2"}}) {
    const auto result = run_process({"bash", "-c", program + "exec " SPAWN_PROGRAM " " + calls}, {.time_limit = 3600});
    EXPECT_EQ(result.code, 0) << calls << ": " << result.err;
    const auto lines = lines_of(result.out);
    ASSERT_EQ(lines.size(), 3) << calls << ": " << result.out << result.err;
    const auto grown = std::stol(lines[0].substr(lines[0].rfind(' ')));
    EXPECT_LT(grown, 400) << calls << ": pages of memory since the first call";
    EXPECT_EQ(lines[1], "rank error") << calls;
    EXPECT_EQ(lines[2], "descriptors +0 threads +0 children 0") << calls;
    EXPECT_TRUE(no_rank_is_left()) << calls;
  }
}

TEST(Spawn, TheErrorOfARankIsThrown) {
  struct Case {
    std::string how;
    int code;
    std::string message;
  };
  const std::vector<Case> cases{
      {"throw", 3, "RankError of rank 1, code 3: rank 1: sample 7 is missing"},
      {"foreign", 1, "rank 1: of the program"},
      {"kill", 137, "RankError of rank 1, code 137: rank 1 was killed by signal 9"},
      {"crash", 134, "rank 1 crashed with signal 6 (Aborted)"},
      {"exit", 3, "rank 1 ended with exit code 3 before the function of spawn() returned"},
      {"nested", 2, "rank 1: spawn() is called by a function that spawn() runs"},
      {"comm", 5, "rank 1: the network is gone"},
      {"lost", 137, "RankError of rank 1, code 137: rank 1 was killed by signal 9"},
      {"stubborn", 3, "rank 0: stop"},
  };
  for (const auto& [how, code, message] : cases) {
    SCOPED_TRACE(how);
    const auto result = run({"fail", how});
    EXPECT_FALSE(result.hung);
    EXPECT_EQ(result.code, code);
    EXPECT_NE(result.err.find(message), std::string::npos) << result.err;
    EXPECT_EQ(lines_of(result.err).size(), 1U) << result.err;
    EXPECT_TRUE(no_rank_is_left());
  }
  for (const auto* ranks : {"0", "-1", "4097"})
    EXPECT_NE(run({"ranks", ranks}).err.find("the number of ranks must be from 1 to 4096"), std::string::npos);
}

TEST(Spawn, IsRefusedInARankOfALauncher) {
  for (const auto& [size, code] : {std::pair{"2", 1}, {"1", 0}}) {
    const auto result =
        run({"ranks", "2"}, {.environment = {"RANK=0", std::string("WORLD_SIZE=") + size, "LOCAL_RANK=0",
                                             "MASTER_ADDR=127.0.0.1", "MASTER_PORT=29413"}});
    EXPECT_EQ(result.code, code) << result.err;
    EXPECT_EQ(result.err.find("spawn() is called in a rank of a launcher (torchrun, 2 ranks on 1 host)"),
              code == 0 ? std::string::npos : std::string("error: ").size())
        << result.err;
  }
}

TEST(RunProgram, AnErrorIsOneLineAndPrintedResultsStay) {
  EXPECT_EQ(run({"print", "8"}).code, 8);
  for (const std::string count : {"", "abc", "2x", "-3", "1", "9", "99999999999", "2.5", " 2"}) {
    const auto result = run({"print", count});
    EXPECT_EQ(result.code, 2) << count;
    EXPECT_EQ(result.out, "a result\nanother one\n") << count;
    EXPECT_EQ(result.err, "spawn_program: COUNT: \"" + count + "\" is not a whole number from 2 to 8\n");
  }
  const auto spawned = run({"spawn_in_program"});
  EXPECT_EQ(spawned.code, 3);
  EXPECT_EQ(spawned.err, "spawn_program: rank 1: sample 7 is missing\n");
}

TEST(Spawn, MainMustComeToTheSameCall) {
  const TemporaryFolder folder;
  const auto result = run({"turn", folder.path() + "/once"});
  EXPECT_EQ(result.code, 9);
  EXPECT_NE(result.err.find("rank 0 ended with exit code 9 before it came to the call of spawn() at "),
            std::string::npos)
      << result.err;
  EXPECT_NE(result.err.find("spawn_program.cpp:"), std::string::npos) << result.err;
}

TEST(Spawn, RanksDoNotOutliveTheProgram) {
  const auto result = run({"sleep"}, {.meanwhile = [](pid_t program) {
                            EXPECT_TRUE(wait_until([] { return processes_with(SPAWN_PROGRAM).size() == 3; }));
                            std::this_thread::sleep_for(std::chrono::milliseconds(500));
                            EXPECT_EQ(processes_with(SPAWN_PROGRAM).size(), 3U);
                            kill(program, SIGKILL);
                          }});
  EXPECT_EQ(result.code, 137);
  EXPECT_TRUE(no_rank_is_left());
}

}  // namespace
}  // namespace trireme::tests
