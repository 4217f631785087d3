// `--max-restarts`: ranks that died are started again, and the result is that of a run in which none did.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/command/launch.h"
#include "tests/command/launcher_beside.h"
#include "tests/command/metrics.h"
#include "tests/command/small_run.h"
#include "tests/failure/held_saves.h"

namespace trireme::tests {
namespace {

constexpr const char* kSteps = "epochs = 7\nglobal_batch = 2\neval_every = 100\n";    // 147 steps
constexpr const char* kFewSteps = "epochs = 2\nglobal_batch = 2\neval_every = 40\n";  // 42 steps
const std::vector<std::string> kOften{"--set", "run.checkpoint_every=20"};

std::vector<std::string> joined(std::vector<std::string> words, const std::vector<std::string>& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

void kill_last_rank(const SmallRun& run) {
  const auto ranks = run.ranks();
  ASSERT_FALSE(ranks.empty());
  kill(ranks.back(), SIGKILL);
}

/// Kills the last rank of the run when it has a checkpoint.
void kill_a_rank(const SmallRun& run) {
  namespace fs = std::filesystem;
  const auto has_checkpoint = [&] {
    std::error_code none;
    for (const auto& entry : fs::directory_iterator(run.dir() + "/checkpoints", none))
      if (entry.path().extension().empty()) return true;
    return false;
  };
  EXPECT_TRUE(wait_until(has_checkpoint));
  kill_last_rank(run);
}

TEST(Restart, AKilledRankChangesNothing) {
  const SmallRun straight(kLeaves, kSteps);
  ASSERT_EQ(straight.train(2, kOften).code, 0);
  const struct {
    const char* what;
    std::vector<std::string> before, after;  ///< of the words "trireme train CONFIG"
  } rows[] = {
      {"--ranks", {}, {"--ranks", "2", "--max-restarts", "2"}},
      // It starts a program, whose words stay as they are.
      {"trireme launch, a new run", {TRIREME_COMMAND, "launch", "-n", "2", "--max-restarts", "2"}, {"--fresh"}}};
  for (const auto& row : rows) {
    SCOPED_TRACE(row.what);
    const SmallRun run(kLeaves, kSteps);
    const HeldSaves held(run, "step-00000040.tmp");
    const auto result =
        run_process(joined(joined(row.before, {TRIREME_COMMAND, "train", run.config}), joined(row.after, kOften)),
                    held.options([&](pid_t) {
                      kill_a_rank(run);
                      held.release();
                    }));
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_EQ(count_of(result.out, "restart   1 of 2, after: rank 1 was killed by signal 9"), 1) << result.out;
    EXPECT_EQ(count_of(result.out, "resume    from "), 1) << result.out;
    EXPECT_FALSE(std::filesystem::exists(run.dir() + ".1")) << "its progress is thrown away";
    EXPECT_TRUE(weights_of(run) == weights_of(straight));
    const auto metrics = content_of(run.dir() + "/metrics.jsonl");
    EXPECT_EQ(count_of(metrics, "\"restart\":{"), 1) << metrics;
    EXPECT_EQ(count_of(metrics, "\"kind\":\"step\""), 147);
    const auto times = json_of(run.dir() + "/summary.json").at("times");
    EXPECT_EQ(times.at("starts"), 2) << times;
    for (const auto* part : {"training", "start-up", "idle"}) EXPECT_GT(times.at(part), 0) << times;
    EXPECT_EQ(count_of(result.out, "\ngoodput   "), 1) << result.out;
    run.expect_all_gone();
  }
}

// Rank 1 dies whenever it starts, as on a machine that lost a device.
TEST(Restart, FewerRanksGoOnWhereAsManyComeNoFurther) {
  const LauncherBeside launcher([](const std::string&, const std::string& worker) {
    return "[ \"$RANK\" = 1 ] && kill -9 $$\nexec " + worker + " \"$@\"\n";
  });
  const SmallRun alone(kLeaves, kFewSteps), run(kLeaves, kFewSteps);
  ASSERT_EQ(alone.train(1, {"--set", "run.threads=1"}).code, 0);
  const std::vector<std::string> command{launcher.command(), "train", run.config, "--ranks", "2",
                                         "--max-restarts",   "2"};
  const auto result = run_process(joined(command, {"--min-ranks", "1", "--set", "run.threads=1"}));
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(count_of(result.out, "restart   "), 2) << result.out;
  EXPECT_EQ(count_of(result.out, "ranks     1 in place of 2\n"), 1) << result.out;
  EXPECT_TRUE(weights_of(run) == weights_of(alone));

  const auto as_many = run_process(joined(command, {"--fresh"}));
  EXPECT_NE(as_many.code, 0);
  EXPECT_NE(as_many.err.find("not started again: 2 restarts of --max-restarts 2 made"), std::string::npos)
      << as_many.err;
  // Tensor parallelism over two ranks cannot shrink.
  const auto sharded = run_process(joined(command, {"--min-ranks", "1", "--set", "parallel.tp=2", "--fresh"}));
  EXPECT_NE(sharded.code, 0);
  EXPECT_EQ(sharded.out.find("in place of"), std::string::npos) << sharded.out;
}

// A rank that dies when the results are written leaves nothing to do.
TEST(Restart, AFinishedTrainingIsNotRepeated) {
  const LauncherBeside launcher([](const std::string& folder, const std::string& worker) {
    return worker + " \"$@\"\ncode=$?\nif [ \"$RANK\" = 1 ] && mkdir " + folder +
           "/once 2>/dev/null; then kill -9 $$; fi\nexit $code\n";
  });
  for (const auto& more : {std::vector<std::string>{"--fresh"}, {"--set", "run.keep_checkpoints=0"}}) {
    const SmallRun run(kLeaves);
    const auto result =
        run_process(joined({launcher.command(), "train", run.config, "--ranks", "2", "--max-restarts", "1"}, more));
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_EQ(count_of(result.out, "restart   1 of 1, after: "), 1) << result.out;
    EXPECT_EQ(count_of(result.out, "nothing is left to do: "), 1) << result.out;
    EXPECT_FALSE(std::filesystem::exists(run.dir() + ".1"));
    EXPECT_TRUE(std::filesystem::exists(run.dir() + "/summary.json"));
    std::filesystem::remove(launcher.folder().path() + "/once");
  }
}

// What would fail again is not started again, and neither is a run that a signal stops.
TEST(Restart, OnlyDeathsAreRestarted) {
  const SmallRun run(kLeaves, kSteps);
  const auto bad = run.train(2, {"--max-restarts", "3", "--set", "optimizer.lr=1e30"});
  EXPECT_EQ(bad.code, 6) << bad.err;
  EXPECT_EQ(bad.out.find("restart "), std::string::npos) << bad.out;
  const SmallRun stopped(kLeaves, "epochs = 100000\nglobal_batch = 8\n");
  const auto result = stopped.train(2, {"--max-restarts", "3"}, {.meanwhile = [&](pid_t launcher) {
                                      stopped.wait_for_steps();
                                      kill(launcher, SIGTERM);
                                    }});
  EXPECT_EQ(result.code, 128 + SIGTERM) << result.err;
  EXPECT_EQ(result.out.find("restart "), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("--ranks 2 --max-restarts 3\n"), std::string::npos) << result.out;
  // Nor one whose rank dies after the request.
  for (const int signal : {SIGINT, SIGUSR1}) {
    const SmallRun dying(kLeaves, "epochs = 100000\nglobal_batch = 8\n");
    const auto died = dying.train(2, {"--max-restarts", "3"}, {.meanwhile = [&](pid_t launcher) {
                                    dying.wait_for_steps();
                                    const auto ranks = dying.ranks();
                                    ASSERT_EQ(ranks.size(), 2U);
                                    const auto last = ranks.back();
                                    stop_process(last);
                                    kill(launcher, signal);
                                    wait_for_pending(last, SIGUSR1);
                                    kill(last, SIGKILL);
                                  }});
    EXPECT_EQ(died.code, 5) << died.err;
    EXPECT_EQ(died.out.find("restart "), std::string::npos) << died.out;
    dying.expect_all_gone();
  }
}

// A signal between two starts, or just before the first one is over, ends the command.
TEST(Restart, ASignalBetweenTwoStartsIsObeyed) {
  for (const bool between : {false, true}) {
    SCOPED_TRACE(between);
    const LauncherBeside launcher([](const std::string& folder, const std::string&) {
      return "echo $RANK >>" + folder + "/starts\nkill -9 $$\n";
    });
    const SmallRun run(kLeaves, kSteps);
    const auto starts = launcher.folder().path() + "/starts";
    std::size_t started = 0;
    const auto result = run_process(
        {launcher.command(), "train", run.config, "--ranks", "2", "--max-restarts", "5"},
        {.meanwhile = [&](pid_t command) {
          const auto is_time = [&] {
            return between ? count_of(printed_by(command), "restart   1 of 5") == 1 : std::filesystem::exists(starts);
          };
          EXPECT_TRUE(wait_until(is_time, 60, std::chrono::milliseconds(1)));
          // However late this test is, the ranks that were started before the signal are then known.
          stop_process(command);
          EXPECT_TRUE(wait_until([&] { return processes_with(launcher.folder().path()).size() == 1; }));
          started = lines_of(content_of(starts)).size();
          kill(command, SIGTERM);
          kill(command, SIGCONT);
        }});
    EXPECT_NE(result.code, 0);
    // The command may have been stopped between the two ranks of a start.
    EXPECT_LE(lines_of(content_of(starts)).size(), started + started % 2) << "its ranks were started again";
    EXPECT_EQ(result.err.find("not started again"), std::string::npos) << result.err;
  }
}

// The ranks have died, and the command knows nothing of it yet.
TEST(Restart, ASignalBesideTheDeathOfAllRanksIsObeyed) {
  const auto time = own_time("600.625");
  const LauncherBeside launcher([&](const std::string&, const std::string&) { return "exec sleep " + time + "\n"; });
  const SmallRun run(kLeaves, kSteps);
  const auto result = run_process({launcher.command(), "train", run.config, "--ranks", "2", "--max-restarts", "5"},
                                  {.meanwhile = [&](pid_t command) {
                                    wait_for_processes(time, 2);
                                    stop_process(command);
                                    const auto ranks = processes_with(time);
                                    for (const pid_t rank : ranks) kill(rank, SIGKILL);
                                    for (const pid_t rank : ranks) EXPECT_TRUE(wait_until([&] { return !runs(rank); }));
                                    kill(command, SIGTERM);
                                    kill(command, SIGCONT);
                                  }});
  EXPECT_EQ(result.code, 128 + SIGTERM) << result.err;
  EXPECT_EQ(result.out.find("restart   "), std::string::npos) << result.out;
}

// A rank that dies before the run has a checkpoint of its own.
TEST(Restart, BeforeItsFirstCheckpointItStartsAsBefore) {
  const LauncherBeside launcher([](const std::string& folder, const std::string& worker) {
    return "if [ \"$RANK\" = 1 ] && mkdir " + folder + "/once 2>/dev/null; then kill -9 $$; fi\nexec " + worker +
           " \"$@\"\n";
  });
  const SmallRun from(kLeaves, "epochs = 1\nglobal_batch = 2\n"), straight(kLeaves, kFewSteps), run(kLeaves, kFewSteps);
  ASSERT_EQ(from.train(2).code, 0);
  ASSERT_EQ(straight.train(2, {"--resume", from.dir()}).code, 0);
  const auto result = run_process(
      {launcher.command(), "train", run.config, "--ranks", "2", "--max-restarts", "1", "--resume", from.dir()});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(count_of(result.out, "restart   1 of 1"), 1) << result.out;
  EXPECT_TRUE(weights_of(run) == weights_of(straight));
}

/// A run of one epoch of 105 steps, so that it saves nothing before its end.
const std::string kOneEpoch = "epochs = 1\nglobal_batch = 2\n";
const std::string kOneEpochsLeaves = "[data]\nname = \"leaves\"\nimages = 300\nimage_size = 16\n";

/// Kills the run's last rank after so many steps of its first start, or of the next one.
void kill_after(const SmallRun& run, bool restarted, int steps) {
  run.wait_for_steps(steps, restarted);
  kill_last_rank(run);
}

// What a start leaves that saved nothing is not worth keeping: only the user's own earlier run is moved.
TEST(Restart, WithoutACheckpointTheFolderIsUsedAgain) {
  const SmallRun run(kOneEpochsLeaves, kOneEpoch);
  ASSERT_EQ(run.train(1).code, 0);
  const HeldSaves held(run);
  const auto result = run.train(2, {"--fresh", "--max-restarts", "2"}, held.options([&](pid_t) {
    // The run before is moved when the first rank is there.
    wait_for_file(run.dir() + ".1");
    for (const bool restarted : {false, true}) kill_after(run, restarted, 10);
    held.release();
  }));
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(count_of(result.out, "restart   "), 2) << result.out;
  EXPECT_EQ(count_of(result.out, "earlier   start saved no checkpoint; its folder is used again\n"), 2) << result.out;
  EXPECT_TRUE(std::filesystem::exists(run.dir() + ".1/summary.json")) << "the user's own run";
  EXPECT_FALSE(std::filesystem::exists(run.dir() + ".2"));
  EXPECT_EQ(count_of(content_of(run.dir() + "/metrics.jsonl"), "\"kind\":\"step\""), 105);
  const auto times = json_of(run.dir() + "/summary.json").at("times");
  EXPECT_EQ(times.at("starts"), 3) << times;
  EXPECT_GT(times.at("lost"), 0) << times;
}

// More steps without a checkpoint are lost like fewer ones.
TEST(Restart, OnlyANewerCheckpointIsProgress) {
  const SmallRun run(kOneEpochsLeaves, kOneEpoch);
  const HeldSaves held(run);
  const auto result = run.train(2, {"--max-restarts", "2", "--min-ranks", "1"}, held.options([&](pid_t) {
    for (const bool restarted : {false, true}) kill_after(run, restarted, restarted ? 30 : 10);
    held.release();
  }));
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(count_of(result.out, "ranks     1 in place of 2\n"), 1) << result.out;
}

// One process cannot have fewer ranks.
TEST(Restart, TheAdviceFitsOneRank) {
  const SmallRun run(kOneEpochsLeaves, kOneEpoch);
  const HeldSaves held(run);
  const auto result = run.train(1, {"--max-restarts", "1"}, held.options([&](pid_t) {
    kill_after(run, false, 10);
    held.release();
  }));
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(count_of(result.err,
                     "was killed by signal 9, most often because the machine ran out of memory: use a smaller "
                     "train.micro_batch"),
            1)
      << result.err;
}

TEST(Restart, OfAnyProgram) {
  const TemporaryFolder folder;
  const auto once = "if mkdir " + folder.path() + "/once$RANK 2>/dev/null; then kill -9 $$; fi; echo rank $RANK";
  const auto result = run_process(
      {TRIREME_COMMAND, "launch", "-n", "2", "--max-restarts", "1", "sh", "-c", "[ $RANK = 0 ] || { " + once + "; }"});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(count_of(result.out, "restart   1 of 1, after: rank 1 was killed by signal 9"), 1) << result.out;
  EXPECT_EQ(count_of(result.out, "rank 1\n"), 1) << result.out;
}

TEST(Restart, Refuses) {
  const SmallRun run(kLeaves, std::string(kSteps) + "[parallel]\ndp = 2\n");
  const std::string dp = run.config + ":";
  const struct {
    std::vector<std::string> options;
    std::string says;
  } rows[] = {
      {{"--min-ranks", "1"}, "--min-ranks is for restarts; add --max-restarts"},
      {{"--max-restarts", "1", "--min-ranks", "3"}, "--min-ranks 3: must be at least 1 and at most --ranks (2)"},
      {{"--max-restarts", "-1"}, "--max-restarts -1: must be at least 0"},
      {{"--max-restarts", "1", "--min-ranks", "1"}, "parallel.dp"},
  };
  expect_refusal(run_process({TRIREME_COMMAND, "launch", "-n", "2", "--max-restarts", "-1", "true"}), 2,
                 "--max-restarts -1: must be at least 0");
  for (const auto& row : rows) expect_refusal(run.train(2, row.options), 2, row.says);
  EXPECT_NE(run.train(2, rows[3].options).err.find(dp), std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(run.dir()));
}

}  // namespace
}  // namespace trireme::tests
