// Training that cannot continue: each cause ends all ranks with one message, its exit code and no half-written files.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <utility>

#include "tests/command/metrics.h"
#include "tests/command/small_run.h"

namespace trireme::tests {
namespace {

/// The lines of an evaluation without the time at their ends.
std::vector<std::string> untimed(const std::string& output) {
  auto lines = lines_of(output);
  for (auto& line : lines) line.erase(line.find_last_not_of("0123456789. s") + 1);
  return lines;
}

TEST(Train, GoodRunWritesItsFolder) {
  const SmallRun run;
  const auto result = run.train(2);
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  EXPECT_EQ(result.out.find('\x1b'), std::string::npos) << "control characters without a terminal";
  EXPECT_EQ(result.out.find('\r'), std::string::npos) << "control characters without a terminal";
  for (const auto* file : {"config.toml", "metrics.jsonl", "summary.json", "model/model.safetensors"})
    EXPECT_TRUE(fs::exists(run.dir() + "/" + file)) << file;
  // The resolved file is a valid configuration.
  const auto checked = run_process({TRIREME_COMMAND, "config", run.dir() + "/config.toml"});
  EXPECT_EQ(checked.code, 0) << checked.err;
  const auto evaluated = run_process({TRIREME_COMMAND, "eval", run.dir(), run.config});
  EXPECT_EQ(evaluated.code, 0) << evaluated.err;
  EXPECT_NE(evaluated.out.find("accuracy"), std::string::npos) << evaluated.out;
  EXPECT_EQ(untimed(run_process({TRIREME_COMMAND, "eval", run.dir()}).out), untimed(evaluated.out));

  const auto again = run.train(2, {"--resume", "must"});
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_NE(again.out.find("steps are done; raise train.epochs"), std::string::npos) << again.out;
}

TEST(Train, RefusesAMissingDataFolder) {
  const SmallRun run("[data]\nname = \"image_folder\"\npath = \"/nowhere/beans\"\n");
  for (const int ranks : {1, 3}) expect_only_refusal(run.train(ranks), 3, "/nowhere/beans");
  EXPECT_FALSE(fs::exists(run.dir()));
}

// The driver is a fake one (tests/unit/comm/fake_cuda.cpp) for a CUDA that is too old for this LibTorch.
TEST(Train, SaysWhyAGpuIsNotUsed) {
  const SmallRun run;
  const char* libraries = std::getenv("LD_LIBRARY_PATH");
  const ProcessOptions old{.environment = {std::string("LD_LIBRARY_PATH=") + TRIREME_FAKE_CUDA_FOLDER + ":" +
                                               (libraries == nullptr ? "" : libraries),
                                           "FAKE_CUDA_VERSION=12040"}};
  expect_only_refusal(run.train(2, sets({"run.device=cuda"}), old), 2,
                      "supports CUDA 12.4, but this LibTorch needs 13.0");
  for (const int ranks : {1, 2}) {
    fs::remove_all(run.dir());
    const auto result = run.train(ranks, sets({"run.device=auto"}), old);
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_EQ(lines_of(result.err).size(), 1U) << result.err;
    EXPECT_NE(result.err.find("using the CPU: the CUDA driver supports CUDA 12.4"), std::string::npos) << result.err;
  }
}

/// An image folder of leaves in which one file is not an image.
struct SpoiltLeaves {
  explicit SpoiltLeaves(const std::string& split) {
    const auto made = run_process(
        {TRIREME_COMMAND, "data", "leaves", "--out", folder.path() + "/leaves", "--images", "60", "--size", "16"});
    EXPECT_EQ(made.code, 0) << made.err;
    victim = fs::directory_iterator(folder.path() + "/leaves/" + split + "/healthy")->path().string();
    std::ofstream(victim, std::ios::binary) << "this is no image";
  }
  [[nodiscard]] std::string section() const {
    return "[data]\nname = \"image_folder\"\nimage_size = 16\npath = \"" + folder.path() + "/leaves\"\n";
  }
  TemporaryFolder folder;
  std::string victim;
};

TEST(Train, KeepsItsWeightsWhenATestImageIsBad) {
  const SpoiltLeaves leaves("test");
  const SmallRun run(leaves.section());
  const auto result = run.train(2);
  expect_refusal(result, 3, leaves.victim);
  EXPECT_NE(
      result.err.find("The training is complete, and its weights are in " + run.dir() + "/model; the same command"),
      std::string::npos)
      << result.err;
  EXPECT_TRUE(fs::exists(run.dir() + "/model/model.safetensors"));
  fs::remove(leaves.victim);
  const auto rest = run.train(2);
  EXPECT_EQ(rest.code, 0) << rest.err;
  EXPECT_NE(rest.out.find("all 6 steps done"), std::string::npos) << rest.out;
}

TEST(Train, NamesACorruptImage) {
  const SpoiltLeaves leaves("train");
  const auto& victim = leaves.victim;
  const SmallRun run(leaves.section());
  for (const int ranks : {1, 2}) {
    expect_refusal(run.train(ranks), 3, victim);
    run.expect_nothing_half_written();
  }
}

// The ranks of every layout agree on the samples that are left out, in training and in evaluation.
TEST(Train, SkipsTheSameSamplesInEveryLayout) {
  for (const char* split : {"train", "validation"}) {
    const SpoiltLeaves leaves(split);
    const SmallRun run(leaves.section());
    std::optional<std::pair<double, double>> expected;
    for (const char* layout : {"parallel.plugin=torch_ddp", "parallel.tp=2", "parallel.pp=2", "data.shard_data=true",
                               "data.dispatch=true"}) {
      const auto skipped =
          run.train(2, {"--set", "data.on_bad_sample=skip", "--set", "train.precision=fp64", "--set", layout});
      ASSERT_EQ(skipped.code, 0) << layout << skipped.err;
      const std::pair losses{metrics_of(run.dir(), "step").back().at("loss").get<double>(),
                             metrics_of(run.dir(), "eval", "validation").back().at("loss").get<double>()};
      if (!expected) expected = losses;
      EXPECT_NEAR(losses.first, expected->first, 1e-9) << split << " " << layout;
      EXPECT_NEAR(losses.second, expected->second, 1e-9) << split << " " << layout;
    }
  }
}

/// The environment of torchrun's first rank of two. No other test program has its ports, and the system gives ports
/// from 32768 on to connections.
ProcessOptions first_of_two() {
  static int port = 20000 + getpid() % 12000;
  return {.environment = {"RANK=0", "WORLD_SIZE=2", "LOCAL_RANK=0", "LOCAL_WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1",
                          "MASTER_PORT=" + std::to_string(port++)}};
}

// Mistakes are reported before an earlier run in the folder is moved away.
TEST(Train, KeepsAnEarlierRunUntilAllChecksPass) {
  const SmallRun run;
  fs::create_directories(run.dir());
  std::ofstream(run.dir() + "/metrics.jsonl") << "{}\n";
  const std::vector<std::pair<std::string, std::string>> cases{
      {"optimizer.freeze=bais", "must be a list of strings"},
      {"optimizer.freeze=[\"bais\"]", "\"bais\" matches no parameter; did you mean \"bias\"?"},
      {"schedule.warmup_steps=1000", "sets 1000 warm-up steps, but the training has only 6"},
  };
  for (const int ranks : {1, 2})
    for (const auto& [set, says] : cases) expect_only_refusal(run.train(ranks, {"--set", set}), 2, says);
  // A rank that never arrives is noticed when the world starts.
  expect_only_refusal(run.train(1, {"--set", "comm.init_timeout_s=5"}, first_of_two()), 5,
                      "rank 1 of 2 did not arrive within 5 s");
  EXPECT_TRUE(fs::exists(run.dir() + "/metrics.jsonl"));
  EXPECT_FALSE(fs::exists(run.dir() + ".1"));
}

TEST(Train, RefusesMoreRanksThanSamplesOfABatch) {
  const SmallRun run(kLeaves, "epochs = 1\nglobal_batch = 2\n");
  expect_only_refusal(run.train(3), 2, "a global batch of 2 cannot be split over 3 data-parallel ranks");
  EXPECT_FALSE(fs::exists(run.dir()));
}

TEST(Train, RefusesAPluginOfAnotherVersion) {
  const SmallRun run;
  // A refusal shows both of the values that must agree.
  const std::vector<std::pair<std::string, std::vector<std::string>>> stale{
      {TRIREME_STALE_ABI, {"ABI 0", "this is plugin ABI "}}, {TRIREME_STALE_VERSION, {"0.0.1", TRIREME_TEST_VERSION}}};
  for (const auto& [file, values] : stale) {
    const auto result = run.train(2, {"--set", "parallel.plugin=" + file});
    for (const auto& value : values) expect_only_refusal(result, 2, value);
  }
  expect_only_refusal(run.train(1, {"--set", "parallel.plugin=torch_dpp"}), 2, "did you mean \"torch_ddp\"?");
  expect_only_refusal(run.train(1, {"--set", "parallel.plugin=/nowhere/x.so"}), 2, "/nowhere/x.so");
  EXPECT_FALSE(fs::exists(run.dir()));
}

TEST(Train, ReportsThatNcclFailed) {
  const SmallRun run;
  for (const auto* trouble : {"call", "thread"}) {
    SCOPED_TRACE(trouble);
    const ProcessOptions options{.environment = {std::string("TROUBLE=") + trouble}};
    const auto result = run.train(2, {"--set", std::string("parallel.plugin=") + TRIREME_TROUBLED}, options);
    expect_refusal(result, 5, "remote process exited or there was a network error; socketProgress: Connection closed");
    run.expect_nothing_half_written();
    run.expect_all_gone();
    fs::remove_all(run.dir());
  }
}

TEST(Train, ReportsThatTheDiskIsFull) {
  const SmallRun run;
  // A write beyond the limit fails as on a full disk.
  const auto result = run.train(1, {}, {.file_limit = 16 * 1024});
  expect_refusal(result, 7, run.dir());
  run.expect_nothing_half_written();

  // If this process may mount a small file system, the run fills it.
  fs::create_directories(run.folder.path() + "/disk");
  const auto on_small_disk = [&](const std::string& command, const std::string& size = "72k") {
    return run_process({"unshare", "-m", "sh", "-c",
                        "mount -t tmpfs -o size=" + size + " none " + run.folder.path() + "/disk && " + command});
  };
  if (on_small_disk("true").code != 0) {
    std::puts("mounting a small disk is not permitted here: only the limit on file sizes was tested");
    return;
  }
  const auto train = std::string(TRIREME_COMMAND) + " train " + run.config + " --set run.dir=" + run.folder.path() +
                     "/disk/run --ranks ";
  for (const auto* ranks : {"1", "2"})
    expect_only_refusal(on_small_disk(train + ranks, "48k"), 7,
                        run.folder.path() +
                            "/disk has 48.0 KiB left, but the 5,491 parameters that the run writes need "
                            "at least 64.3 KiB; free some space");
  const auto full = on_small_disk(train + "2");
  expect_refusal(full, 7, run.folder.path() + "/disk");
  EXPECT_NE(full.err.find("No space left"), std::string::npos) << full.err;

  // Only rank 0 writes metrics; its error is that of the others, which do not lose it.
  const SmallRun endless(kManyLeaves, "epochs = 1000\nglobal_batch = 8\n");
  for (const std::string& start :
       {" train " + endless.config + " --ranks 2", " launch -n 2 " TRIREME_COMMAND " train " + endless.config}) {
    const auto metrics =
        on_small_disk(TRIREME_COMMAND + start + " --set run.dir=" + run.folder.path() + "/disk/metrics");
    EXPECT_EQ(metrics.code, 7) << metrics.err;
    EXPECT_NE(metrics.err.find("/metrics.jsonl: cannot be written: No space left on device; 0 B are free there; free "
                               "some space, or choose a folder on another disk\n"),
              std::string::npos)
        << metrics.err;
    EXPECT_EQ(metrics.err.find("gave up"), std::string::npos) << metrics.err;
  }

  // An incomplete set of images is removed, so that it is not mistaken for a complete one.
  const auto images = on_small_disk(std::string(TRIREME_COMMAND) + " data leaves --out " + run.folder.path() +
                                    "/disk/leaves; code=$?; ls -R " + run.folder.path() + "/disk; exit $code");
  expect_refusal(images, 3, "/disk/leaves/train/");
  EXPECT_EQ(images.out, run.folder.path() + "/disk:\nleaves\n\n" + run.folder.path() + "/disk/leaves:\n");
}

TEST(Train, ReportsThatTheRunFolderCannotBeMade) {
  const SmallRun run;
  run.folder.write("file", "");
  expect_only_refusal(run.train(2, {"--set", "run.dir=" + run.folder.path() + "/file/run"}), 7, "file/run");
  const auto disk = run.folder.path() + "/disk";
  fs::create_directories(disk);
  const auto read_only =
      run_process({"unshare", "-m", "sh", "-c",
                   "mount -t tmpfs none " + disk + " && mkdir " + disk + "/run && mount -o remount,ro " + disk +
                       " && exec " TRIREME_COMMAND " train " + run.config + " --set run.dir=" + disk + "/run"});
  if (read_only.err.find("trireme: ") == std::string::npos) {
    std::puts("mounting a disk is not permitted here: a read-only one was not tested");
    return;
  }
  expect_refusal(read_only, 7, "/run/.lock: cannot be written: Read-only file system; choose a folder that you may");
}

TEST(Train, ReportsWhatIsNotFinite) {
  const SmallRun run;
  expect_refusal(run.train(2, {"--set", "optimizer.lr=1e30"}), 6, "optimizer.lr");
}

TEST(Train, RefusesMissingWeightsAndCheckpoints) {
  const SmallRun run;
  expect_refusal(run.train(2, {"--resume", "/nowhere/checkpoint"}), 7, "/nowhere/checkpoint");
  expect_refusal(run_process({TRIREME_COMMAND, "eval", "/nowhere/weights", run.config}), 7, "/nowhere/weights");
}

TEST(Train, OneMessageUnderTheUsersOwnLauncher) {
  const SmallRun run;
  const ProcessOptions root{.environment = {"OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"}};
  expect_only_refusal(run_process({TRIREME_TEST_MPIRUN, "-n", "3", "--oversubscribe", "--quiet", TRIREME_COMMAND,
                                   "train", run.config, "--set", "train.epohcs=1"},
                                  root),
                      2, "--set train.epohcs=1: no key");
  expect_only_refusal(run.train(1, {"--set", "comm.init_timeout_s=5"}, first_of_two()), 5,
                      "rank 1 of 2 did not arrive within 5 s");
}

int threads_of(pid_t id) {
  std::ifstream file("/proc/" + std::to_string(id) + "/status");
  for (std::string line; std::getline(file, line);)
    if (line.rfind("Threads:", 0) == 0) return std::stoi(line.substr(8));
  return 0;
}

TEST(Train, ComputesWithTheRequestedThreads) {
  const SmallRun run(kLeaves, "epochs = 100000\nglobal_batch = 8\n");
  const auto threads = [&](const std::string& reported) {
    int count = 0;
    const auto result = run.train(1,
                                  {"--set", "run.threads=" + reported, "--set", "data.image_size=64", "--set",
                                   "model.hidden_size=64", "--set", "model.intermediate_size=256"},
                                  {.meanwhile = [&](pid_t rank) {
                                    run.wait_for_steps();
                                    count = threads_of(rank);
                                    kill(rank, SIGTERM);
                                  }});
    EXPECT_EQ(result.code, 128 + SIGTERM) << result.err;
    std::error_code ignored;
    fs::remove_all(run.dir(), ignored);
    return count;
  };
  EXPECT_GE(threads("4") - threads("1"), 3);  // the loader may have its own threads
}

// Rank 0 has a connection for each of the others.
TEST(Train, OpensAsManyFilesAsItMay) {
  const SmallRun run(kLeaves, "epochs = 100000\nglobal_batch = 8\n");
  std::string limits;
  const auto result =
      run_process({"bash", "-c", "ulimit -Sn 50 && ulimit -Hn 400 && exec " TRIREME_COMMAND " train " + run.config},
                  {.meanwhile = [&](pid_t rank) {
                    run.wait_for_steps();
                    limits = content_of("/proc/" + std::to_string(rank) + "/limits");
                    kill(rank, SIGTERM);
                  }});
  EXPECT_EQ(result.code, 128 + SIGTERM) << result.err;
  const auto line = limits.substr(limits.find("Max open files"));
  EXPECT_EQ(count_of(line.substr(0, line.find('\n')), "400"), 2) << line;
}

TEST(Train, EndsAfterMaxSeconds) {
  const SmallRun run(kLeaves, "epochs = 100000\nglobal_batch = 8\nmax_seconds = 1.0\n");
  const auto result = run.train(2);
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_NE(result.out.find("stopped by train.max_seconds"), std::string::npos) << result.out;
  EXPECT_TRUE(fs::exists(run.dir() + "/model/model.safetensors"));
}

const char* const kLong = "epochs = 100000\nglobal_batch = 8\n";

TEST(Train, StopsOnCtrlC) {
  const SmallRun run(kLeaves, kLong);
  for (const auto& [ranks, signal] :
       {std::pair{2, SIGINT}, {2, SIGTERM}, {2, SIGUSR1}, {2, SIGHUP}, {1, SIGINT}, {1, SIGTERM}, {1, SIGHUP}}) {
    const auto result = run.train(ranks, {}, {.meanwhile = [&](pid_t launcher) {
                                    run.wait_for_steps();
                                    kill(launcher, signal);
                                  }});
    expect_refusal(result, 128 + signal, "stopped by signal " + std::to_string(signal) + " (");
    run.expect_all_gone();
    EXPECT_NE(result.out.find("saved in"), std::string::npos) << result.out;
    EXPECT_FALSE(fs::exists(run.dir() + "/summary.json"));
    fs::remove_all(run.dir());
  }
}

TEST(Train, StopsOnASignalAtTheStart) {
  const SmallRun run(kLeaves, kLong);
  for (int turn = 0; turn < 5; ++turn) {
    // The signal is sent as soon as the launcher holds signals, when it has not started any ranks yet.
    const auto result =
        run.train(2, {}, {.meanwhile = [](pid_t launcher) {
                    const auto holds = [&] { return has_signal(launcher, "SigBlk", SIGTERM); };
                    (void)wait_until([&] { return !runs(launcher) || holds(); }, 60, std::chrono::milliseconds(0));
                    kill(launcher, SIGTERM);
                  }});
    expect_refusal(result, 128 + SIGTERM, "stopped by signal 15");
    run.expect_all_gone();
  }
}

TEST(Train, NoRankOutlivesAnother) {
  const std::vector<std::pair<int, std::string>> cases{{SIGKILL, "rank 2 was killed by signal 9"},
                                                       {SIGSEGV, "rank 2 crashed with signal 11 (Segmentation fault)"},
                                                       {SIGABRT, "rank 2 crashed with signal 6 (Aborted)"},
                                                       {SIGUSR2, "rank 2 was ended by signal 12 ("}};
  for (const auto& [signal, message] : cases) {
    const SmallRun run(kLeaves, kLong);
    const auto result = run.train(3, {}, {.meanwhile = [&run, signal = signal](pid_t) {
                                    run.wait_for_steps();
                                    const auto ranks = run.ranks();
                                    EXPECT_EQ(ranks.size(), 3U);
                                    if (!ranks.empty()) kill(ranks.back(), signal);
                                  }});
    expect_refusal(result, 5, message);
    EXPECT_NE(result.err.find("\n  2     dead "), std::string::npos) << result.err;
    run.expect_all_gone();
  }
}

// A stopped rank neither answers nor ends.
TEST(Train, ARankThatHangsIsFoundByTheTimeout) {
  const SmallRun run(kLeaves, kLong);
  // Without the forecast, rank 1 does not wait while rank 0 alone computes it.
  const auto result = run.train(2, sets({"comm.timeout_s=10", "run.forecast=false"}), {.meanwhile = [&](pid_t) {
                                  run.wait_for_steps();
                                  const auto ranks = run.ranks();
                                  if (!ranks.empty()) kill(ranks.back(), SIGSTOP);
                                }});
  expect_refusal(result, 5, "nothing received from rank 1 (world rank 1) within 10 s");
  EXPECT_NE(result.err.find("\n  1     stopped "), std::string::npos) << result.err;
  run.expect_all_gone();
}

TEST(Train, RanksEndWithTheirLauncher) {
  const SmallRun run(kLeaves, kLong);
  const auto result = run.train(2, {}, {.meanwhile = [&](pid_t launcher) {
                                  run.wait_for_steps();
                                  kill(launcher, SIGKILL);
                                }});
  EXPECT_EQ(result.code, 137);
  run.expect_all_gone();
}

}  // namespace
}  // namespace trireme::tests
