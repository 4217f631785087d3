// A training that a signal stops at any moment is saved, and the same command gives the result of one that was never
// stopped, however its ranks were started. TRIREME_TEST_REPEAT: how often each way is tried (1).
#include <fcntl.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>
#include <utility>

#include "tests/command/launch.h"
#include "tests/command/metrics.h"
#include "tests/command/small_run.h"
#include "tests/failure/held_saves.h"

namespace trireme::tests {
namespace {

// 4 epochs of 16 steps: an epoch's end saves, which costs more than its steps.
constexpr const char* kSteps = "epochs = 4\nglobal_batch = 8\neval_every = 6\nmax_norm = 1.0\n";
constexpr const char* kSomeLeaves = "[data]\nname = \"leaves\"\nimages = 180\nimage_size = 16\n";

constexpr const char* kEndless = "epochs = 100000\nglobal_batch = 8\n";

struct Start {
  const char* what;
  int ranks;
  std::vector<std::string> before, after;  ///< of the command's own words
};

ProcessResult start(const SmallRun& run, const Start& how, const ProcessOptions& options = {}) {
  std::vector<std::string> words;
  if (!how.before.empty()) words.emplace_back(TRIREME_COMMAND);
  words.insert(words.end(), how.before.begin(), how.before.end());
  words.insert(words.end(), {TRIREME_COMMAND, "train", run.config});
  words.insert(words.end(), how.after.begin(), how.after.end());
  return run_process(words, options);
}

TEST(Stop, AtAnyMomentTheSameCommandGoesOn) {
  const Start starts[] = {
      {"one process", 1, {}, {}},
      {"--ranks", 2, {}, {"--ranks", "2"}},
      {"a pipeline", 2, {}, {"--ranks", "2", "--set", "parallel.pp=2", "--set", "train.micro_batch=2"}},
      {"trireme launch", 2, {"launch", "-n", "2"}, {"--set", "parallel.plugin=low_level_zero"}},
      {"saves in the background",
       2,
       {},
       {"--ranks", "2", "--set", "run.async_save=true", "--set", "run.checkpoint_every=3"}},
  };
  const char* wanted = std::getenv("TRIREME_TEST_REPEAT");
  const int repeats = wanted == nullptr ? 1 : std::atoi(wanted);
  std::mt19937 random(1);
  int stops = 0, turns = 0;
  for (const auto& how : starts) {
    const SmallRun straight(kSomeLeaves, kSteps);
    ASSERT_EQ(start(straight, how).code, 0) << how.what;
    for (int repeat = 0; repeat < repeats; ++repeat) {
      const SmallRun run(kSomeLeaves, kSteps);
      const int signal = std::vector{SIGTERM, SIGINT, SIGHUP, SIGUSR1}[static_cast<std::size_t>(turns++) % 4];
      const int step = 1 + static_cast<int>(random() % 32);
      const std::chrono::milliseconds later(random() % 20);  // also in an evaluation or a save
      const bool twice = turns % 2 == 0;  // a terminal and a program around the command pass on the same signal
      const auto stopped = start(run, how, {.meanwhile = [&](pid_t launcher) {
                                   run.wait_for_steps(step);
                                   std::this_thread::sleep_for(later);
                                   kill(launcher, signal);
                                   if (twice) kill(launcher, signal);
                                 }});
      if (stopped.code != 0) {  // else it was at its end
        ++stops;
        expect_refusal(stopped, 128 + signal, "stopped by signal " + std::to_string(signal) + " (");
        EXPECT_NE(stopped.out.find("saved in " + run.dir() + "/checkpoints/"), std::string::npos)
            << how.what << stopped.out;
        EXPECT_EQ(count_of(stopped.err, "stopping: the step in progress is finished and saved; a second signal"), 1)
            << how.what << stopped.err;
        run.expect_all_gone();
        const auto rest = start(run, how);
        EXPECT_EQ(rest.code, 0) << how.what << rest.err;
        EXPECT_NE(rest.out.find("resume    from "), std::string::npos) << rest.out;
      }
      EXPECT_TRUE(weights_of(run) == weights_of(straight)) << how.what << ", after step " << step;
    }
  }
  EXPECT_GE(2 * stops, turns) << "too few were stopped";
  RecordProperty("stops", stops);
}

// A signal to one of the ranks, such as a scheduler's, stops the training like one to the launcher.
TEST(Stop, ASignalToARankIsARequest) {
  const std::vector<std::string> again{"--max-restarts", "3"}, launch{"launch", "-n", "2"};
  auto launch_again = launch;
  launch_again.insert(launch_again.end(), again.begin(), again.end());
  for (const auto& how :
       {Start{"--ranks", 2, {}, {"--ranks", "2", "--max-restarts", "3"}}, Start{"trireme launch", 2, launch, {}},
        Start{"trireme launch, restarts", 2, launch_again, {}}}) {
    SCOPED_TRACE(how.what);
    const SmallRun run(kManyLeaves, kEndless);
    const auto result = start(run, how, {.meanwhile = [&](pid_t) {
                                run.wait_for_steps();
                                const auto ranks = run.ranks();
                                if (!ranks.empty()) kill(ranks.back(), SIGTERM);
                              }});
    expect_refusal(result, 128 + SIGTERM, "stopped by signal 15 (Terminated)");
    EXPECT_NE(result.out.find("saved in " + run.dir() + "/checkpoints/"), std::string::npos) << result.out;
    EXPECT_EQ(result.out.find("restart   "), std::string::npos) << result.out;
    run.expect_all_gone();
  }
}

/// The numbers of the run's checkpoints that are complete, and that are being written.
std::pair<int, int> count_checkpoints(const SmallRun& run) {
  std::pair<int, int> out;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(run.dir() + "/checkpoints", none))
    ++(entry.path().string().ends_with(".tmp") ? out.second : out.first);
  return out;
}

// All processes are killed while a checkpoint is written in the background: the run goes on from the one before.
TEST(Stop, AKillInABackgroundSaveCostsNoOther) {
  const Start how{
      "--ranks", 2, {}, {"--ranks", "2", "--set", "run.async_save=true", "--set", "run.checkpoint_every=1"}};
  const std::string steps = "epochs = 4\nglobal_batch = 8\nmax_norm = 1.0\n";  // 24 steps
  const SmallRun straight(kLeaves, steps), run(kLeaves, steps);
  ASSERT_EQ(start(straight, how).code, 0);
  const HeldSaves held(run, "step-00000003.tmp/state.json");
  const auto killed = start(run, how, held.options([&](pid_t) {
    EXPECT_TRUE(wait_until(
        [&] {
          const auto [complete, unfinished] = count_checkpoints(run);
          return complete > 0 && unfinished > 0;
        },
        60, std::chrono::microseconds(100)));
    for (const pid_t rank : run.ranks()) kill(rank, SIGKILL);
  }));
  EXPECT_NE(killed.code, 0);
  run.expect_all_gone();
  RecordProperty("unfinished", count_checkpoints(run).second);
  const auto rest = start(run, how);
  EXPECT_EQ(rest.code, 0) << rest.err;
  EXPECT_NE(rest.out.find("resume    from "), std::string::npos) << rest.out;
  EXPECT_EQ(count_checkpoints(run), (std::pair{2, 0}));
  EXPECT_TRUE(weights_of(run) == weights_of(straight));
}

// nohup: a run that ignores SIGHUP at its start goes on.
TEST(Stop, AnIgnoredHangUpStaysIgnored) {
  for (const Start& how : {Start{"one process", 1, {}, {}}, Start{"--ranks", 2, {}, {"--ranks", "2"}},
                           Start{"trireme launch", 2, {"launch", "-n", "2"}, {}}}) {
    const SmallRun run(kLeaves, kEndless);
    const auto result = start(run, how,
                              {.meanwhile =
                                   [&](pid_t launcher) {
                                     run.wait_for_steps();
                                     kill(launcher, SIGHUP);
                                     std::this_thread::sleep_for(std::chrono::milliseconds(700));
                                     EXPECT_FALSE(run.ranks().empty()) << how.what;
                                     kill(launcher, SIGTERM);
                                   },
                               .ignore_hang_up = true});
    expect_refusal(result, 128 + SIGTERM, "stopped by signal 15");
    run.expect_all_gone();
  }
}

enum class By { second_signal, grace_of_run, grace_of_launch };

struct Lost {
  Start start;
  By by;
  bool saves;  ///< it has a checkpoint before
  int signal;
  std::string says;
};

/// Stops the run while its disk hangs.
ProcessResult stop_on_a_hanging_disk(const SmallRun& run, const Lost& row) {
  auto how = row.start;
  if (row.by == By::grace_of_run) how.after.insert(how.after.end(), {"--set", "run.stop_grace_s=1"});
  if (row.saves) how.after.insert(how.after.end(), {"--set", "run.checkpoint_every=5"});
  const auto hangs = run.folder.path() + "/hangs";
  ProcessOptions options{.environment = {std::string("LD_PRELOAD=") + TRIREME_FAULTS,
                                         "FAULT_FOLDER=" + run.dir() + "/checkpoints", "FAULT_WAIT=" + hangs}};
  options.meanwhile = [&](pid_t launcher) {
    run.wait_for_steps();
    // The run's parent has learnt of a checkpoint when the run has recorded it, a little after the folder is there.
    EXPECT_TRUE(wait_until([&] {
      return !row.saves || content_of(run.dir() + "/metrics.jsonl").find("\"event\":\"save\"") != std::string::npos;
    }));
    std::ofstream(hangs) << "for good";
    kill(launcher, row.signal);
    if (row.by != By::second_signal) return;
    ask_again(launcher, row.signal);
  };
  return start(run, how, options);
}

// A training that a signal ends before it has saved says so once, with what it can go on from.
TEST(Stop, SaysOnceWhatIsLost) {
  const std::string term = "stopped by signal 15 (Terminated)",
                    late = "; it could not save within run.stop_grace_s = 1",
                    killed = "; ranks that still ran after 1 s (--grace) were killed",
                    nothing = "; nothing of the run was saved", since = "; nothing was saved since step ";
  const Start one{"one process", 1, {}, {}}, ranks{"--ranks", 2, {}, {"--ranks", "2"}},
      ours{"trireme launch", 2, {"launch", "-n", "2"}, {}},
      graced{"trireme launch with a grace", 2, {"launch", "-n", "2", "--grace", "1"}, {}};
  const Lost rows[] = {
      {one, By::second_signal, false, SIGTERM, term + nothing},
      {one, By::second_signal, true, SIGHUP, "stopped by signal 1 (Hangup)" + since},
      {one, By::grace_of_run, false, SIGTERM, term + late + nothing},
      {ranks, By::second_signal, true, SIGTERM, term + since},
      {ranks, By::grace_of_run, false, SIGTERM, term + late + nothing},
      {ours, By::second_signal, false, SIGTERM, term + nothing},
      {ours, By::grace_of_run, true, SIGTERM, term + late + since},
      {graced, By::grace_of_launch, true, SIGTERM, term + killed + since},
  };
  for (const auto& row : rows) {
    SCOPED_TRACE(std::string(row.start.what) + ": " + row.says);
    const SmallRun run(kManyLeaves, kEndless);
    const auto result = stop_on_a_hanging_disk(run, row);
    expect_refusal(result, 128 + row.signal, row.says);
    if (row.saves) {
      const auto newest = ", and the run can go on from " + run.dir() + "/checkpoints/step-";
      EXPECT_EQ(count_of(result.err, newest), 1) << result.err;
    }
    EXPECT_EQ(count_of(result.err, "stopping: "), 1) << result.err;
    run.expect_all_gone();
  }
}

/// `trireme train` as two ranks of the user's own mpirun.
std::vector<std::string> under_mpirun(const SmallRun& run) {
  return {TRIREME_TEST_MPIRUN,   "-n",        "2",       "--oversubscribe",
          "--allow-run-as-root", "--bind-to", "none",    "--quiet",
          TRIREME_COMMAND,       "train",     run.config};
}

// It passes SIGUSR1 on.
TEST(Stop, UnderTheUsersMpirunTheSameCommandGoesOn) {
  const SmallRun straight(kSomeLeaves, kSteps), run(kSomeLeaves, kSteps);
  ASSERT_EQ(run_process(under_mpirun(straight)).code, 0);
  const auto stopped = run_process(under_mpirun(run), {.meanwhile = [&](pid_t mpirun) {
                                     run.wait_for_steps();
                                     kill(mpirun, SIGUSR1);
                                   }});
  EXPECT_NE(stopped.out.find("saved in " + run.dir() + "/checkpoints/"), std::string::npos) << stopped.out;
  EXPECT_EQ(count_of(stopped.err, "trireme: stopped by signal 10"), 1) << stopped.err;
  const auto rest = run_process(under_mpirun(run));
  EXPECT_EQ(rest.code, 0) << rest.err;
  EXPECT_NE(rest.out.find("resume    from "), std::string::npos) << rest.out;
  EXPECT_TRUE(weights_of(run) == weights_of(straight));
}

// Ranks that a launcher of somebody else started: one of them says it.
TEST(Stop, OneRankSaysWhatIsLost) {
  const SmallRun run(kManyLeaves, kEndless);
  const auto hangs = run.folder.path() + "/hangs";
  auto command = under_mpirun(run);
  command.insert(command.end(), {"--set", "run.stop_grace_s=1"});
  const auto result =
      run_process(command, {.environment = {std::string("LD_PRELOAD=") + TRIREME_FAULTS,
                                            "FAULT_FOLDER=" + run.dir() + "/checkpoints", "FAULT_WAIT=" + hangs},
                            .meanwhile = [&](pid_t mpirun) {
                              run.wait_for_steps();
                              std::ofstream(hangs) << "for good";
                              kill(mpirun, SIGUSR1);
                            }});
  EXPECT_EQ(count_of(result.err, "stopping: "), 1) << result.err;
  EXPECT_EQ(count_of(result.err,
                     "trireme: stopped by signal 10 (User defined signal 1); it could not save within "
                     "run.stop_grace_s = 1; nothing of the run was saved\n"),
            1)
      << result.err;
  EXPECT_EQ(count_of(result.err, "trireme: "), 1) << result.err;
  run.expect_all_gone();
}

// A rank that was signalled itself, and cannot save in time.
TEST(Stop, WhatIsLostIsSaidWhereASignalEndsARank) {
  const SmallRun run(kManyLeaves, kEndless);
  const auto hangs = run.folder.path() + "/hangs";
  const auto result = run.train(2, {"--set", "run.stop_grace_s=1"},
                                {.environment = {std::string("LD_PRELOAD=") + TRIREME_FAULTS,
                                                 "FAULT_FOLDER=" + run.dir() + "/checkpoints", "FAULT_WAIT=" + hangs},
                                 .meanwhile = [&](pid_t) {
                                   run.wait_for_steps();
                                   std::ofstream(hangs) << "for good";
                                   const auto ranks = run.ranks();
                                   if (!ranks.empty()) kill(ranks.back(), SIGTERM);
                                 }});
  expect_refusal(result, 128 + SIGTERM,
                 "stopped by signal 15 (Terminated); it could not save within run.stop_grace_s = 1; nothing of the run "
                 "was saved");
  run.expect_all_gone();
}

// Ranks that are stopped cannot end by themselves.
TEST(Stop, ASecondSignalEndsTheRunAtOnce) {
  const SmallRun run(kLeaves, kEndless);
  const auto result = run.train(2, {}, {.meanwhile = [&](pid_t launcher) {
                                  run.wait_for_steps();
                                  for (const pid_t rank : run.ranks()) stop_process(rank);
                                  kill(launcher, SIGTERM);
                                  ask_again(launcher, SIGTERM);
                                }});
  expect_refusal(result, 128 + SIGTERM, "stopped by signal 15");
  run.expect_all_gone();
}

// The code is that of the rank that says why the training cannot be saved.
TEST(Stop, AnErrorAfterTheRequestHasItsCode) {
  for (const Start& how : {Start{"one process", 1, {}, {}}, Start{"--ranks", 2, {}, {"--ranks", "2"}},
                           Start{"trireme launch", 2, {"launch", "-n", "2"}, {}}}) {
    const SmallRun run(kManyLeaves, kEndless);
    const auto result = start(run, how, {.meanwhile = [&](pid_t launcher) {
                                run.wait_for_steps();
                                std::ofstream(run.dir() + "/checkpoints") << "no folder";
                                kill(launcher, SIGTERM);
                              }});
    expect_refusal(result, 7, run.dir() + "/checkpoints");
    run.expect_all_gone();
  }
}

// A rank that dies while it should save is no orderly stop.
TEST(Stop, ADeathAfterTheRequestIsReported) {
  const SmallRun run(kLeaves, kEndless);
  const auto result = run.train(2, {}, {.meanwhile = [&](pid_t launcher) {
                                  run.wait_for_steps();
                                  const auto ranks = run.ranks();
                                  ASSERT_EQ(ranks.size(), 2U);
                                  stop_process(ranks[1]);
                                  kill(launcher, SIGINT);
                                  wait_for_pending(ranks[1], SIGUSR1);
                                  kill(ranks[1], SIGKILL);
                                }});
  EXPECT_EQ(result.code, 5) << result.err;
  EXPECT_NE(result.err.find("was killed by signal 9"), std::string::npos) << result.err;
  run.expect_all_gone();
}

/// Puts a file where a folder is or will be, at once, since the run saves meanwhile.
void put_file_at(const std::string& path) {
  const auto file = path + ".file";
  std::ofstream(file) << "no folder";
  const auto renamed = [&](unsigned how) {
    return renameat2(AT_FDCWD, file.c_str(), AT_FDCWD, path.c_str(), how) == 0;
  };
  while (!renamed(RENAME_EXCHANGE) && !renamed(RENAME_NOREPLACE)) std::this_thread::yield();
}

TEST(Stop, SaysWhatCouldNotBeSaved) {
  const SmallRun run(kManyLeaves, kEndless);
  const auto result = run.train(2, {"--set", "run.on_save_error=continue"}, {.meanwhile = [&](pid_t launcher) {
                                  run.wait_for_steps();
                                  put_file_at(run.dir() + "/checkpoints");
                                  kill(launcher, SIGTERM);
                                }});
  EXPECT_EQ(result.code, 128 + SIGTERM) << result.err;
  EXPECT_NE(result.out.find(", which could not be saved; "), std::string::npos) << result.out;
  EXPECT_NE(result.err.find("; the run stops without it (run.on_save_error)"), std::string::npos) << result.err;
  EXPECT_EQ(result.err.find("goes on"), std::string::npos) << result.err;
}

TEST(Stop, TheCommandToGoOnDoesNotStartAnew) {
  const SmallRun run(kLeaves, kEndless);
  const auto result = run.train(1, {"--fresh"}, {.meanwhile = [&](pid_t launcher) {
                                  run.wait_for_steps();
                                  kill(launcher, SIGTERM);
                                }});
  EXPECT_NE(result.out.find(" --resume auto"), std::string::npos) << "--fresh would not go on" << result.out;
}

// A rank that is stopped does not notice that its time is over.
TEST(Stop, TheGraceOfARunEndsARankThatIsStopped) {
  const SmallRun run(kLeaves, kEndless);
  const Start how{"--ranks", 2, {}, {"--ranks", "2", "--set", "run.stop_grace_s=1"}};
  const auto result = start(run, how, {.meanwhile = [&](pid_t launcher) {
                              run.wait_for_steps();
                              const auto ranks = run.ranks();
                              if (!ranks.empty()) kill(ranks.back(), SIGSTOP);
                              kill(launcher, SIGTERM);
                            }});
  expect_refusal(result, 128 + SIGTERM, "ranks that still ran after 5 s were killed; it could not save within");
  run.expect_all_gone();
}

// Ctrl-Z pauses the ranks too, which the terminal does not reach.
TEST(Stop, APauseStopsTheRanks) {
  for (const Start& how :
       {Start{"--ranks", 2, {}, {"--ranks", "2"}}, Start{"trireme launch", 2, {"launch", "-n", "2"}, {}}}) {
    const SmallRun run(kLeaves, kEndless);
    const auto result = start(run, how, {.meanwhile = [&](pid_t launcher) {
                                run.wait_for_steps();
                                const auto ranks = run.ranks();
                                const auto all_are = [&](bool paused) {
                                  return wait_until([&] {
                                    return std::all_of(ranks.begin(), ranks.end(),
                                                       [&](pid_t rank) { return (state_of(rank) == 'T') == paused; });
                                  });
                                };
                                kill(launcher, SIGTSTP);
                                EXPECT_TRUE(all_are(true)) << how.what;
                                // It stops itself after them; a SIGCONT before that would be lost.
                                EXPECT_TRUE(wait_until([&] { return state_of(launcher) == 'T'; })) << how.what;
                                kill(launcher, SIGCONT);
                                EXPECT_TRUE(all_are(false)) << how.what;
                                kill(launcher, SIGTERM);
                              }});
    EXPECT_EQ(result.code, 128 + SIGTERM) << how.what << result.err;
    run.expect_all_gone();
  }
}

}  // namespace
}  // namespace trireme::tests
