// The command's input and output: a configuration that can be read only once, output that is closed or full, terminals
// of any width, and the user's own launchers.
#include <algorithm>
#include <csignal>
#include <fstream>
#include <sstream>

#include "tests/command/launch.h"
#include "tests/command/small_run.h"

namespace trireme::tests {
namespace {

ProcessResult shell(const std::string& line) { return run_process({"bash", "-c", line}); }

std::size_t lines_in(const std::string& path) {
  std::ifstream file(path);
  std::size_t count = 0;
  for (std::string line; std::getline(file, line);) ++count;
  return count;
}

TEST(Streams, ReadAConfigurationOnce) {
  const SmallRun run;
  const std::string command = TRIREME_COMMAND;
  for (const std::string ranks : {"1", "2"}) {
    const auto more = " --ranks " + ranks + " --set run.dir=" + run.dir() + ranks;
    for (const auto& line : {"cat " + run.config + " | " + command + " train /dev/stdin" + more,
                             command + " train <(cat " + run.config + ")" + more}) {
      SCOPED_TRACE(line);
      const auto result = shell(line);
      EXPECT_EQ(result.code, 0) << result.err;
      EXPECT_TRUE(fs::exists(run.dir() + ranks + "/summary.json"));
    }
    // Messages name the file as it was given, no matter which process finds the mistake.
    for (const auto& [line, says] : {std::pair{"echo '[train]'; echo 'epochs = 0'", "/dev/stdin:2:1: train.epochs = 0"},
                                     {"cat %; echo '[optimizer]'; echo 'freeze = [\"bais\"]'", "/dev/stdin:"}}) {
      std::string input = line;
      if (const auto at = input.find('%'); at != std::string::npos) input.replace(at, 1, run.config);
      expect_only_refusal(shell("(" + input + ") | " + command + " train /dev/stdin" + more), 2, says);
    }
  }
  const auto verified =
      shell("cat " + run.config + " | " + command + " verify /dev/stdin --layouts 'dp=1; dp=2' --steps 1");
  EXPECT_EQ(verified.code, 0) << verified.err;
}

TEST(Streams, TheEnvironmentDoesNotReplaceTheFile) {
  const SmallRun run;
  const auto other = run.folder.write("other.toml", "[train]\nepochs = 77\n");
  ProcessOptions options;
  options.environment = {"TRIREME_CONFIG=" + other};
  const auto printed = run_process({TRIREME_COMMAND, "config", run.config, "--print"}, options);
  EXPECT_EQ(printed.code, 0) << printed.err;
  EXPECT_EQ(printed.out.find("77"), std::string::npos) << printed.out;
}

// Some daemons and test runners ignore SIGCHLD.
TEST(Streams, ExitCodesAreCorrectWhenTheParentIgnoresSigchld) {
  const SmallRun run;
  const std::string train =
      std::string("trap '' CHLD; exec ") + TRIREME_COMMAND + " train " + run.config + " --ranks 2";
  expect_only_refusal(shell(train + " --set 'optimizer.freeze=[\"bais\"]'"), 2, "\"bais\" matches no parameter");
  EXPECT_EQ(shell(train).code, 0);
}

// Training continues, its files are complete, and the lost output is reported at the end, on any number of ranks.
TEST(Streams, TrainingNeedsNoOutput) {
  const SmallRun run;
  for (const std::string ranks : {"1", "2"})
    for (const auto& [to, reason] : {std::pair{">&-", "Bad file descriptor"},
                                     {">/dev/full", "No space left on device"},
                                     {"| true", "Broken pipe"}}) {
      SCOPED_TRACE(ranks + " ranks " + to);
      fs::remove_all(run.dir());
      const auto result = shell("set -o pipefail; sleep 0.2; " + std::string(TRIREME_COMMAND) + " train " + run.config +
                                " --ranks " + ranks + " " + to);
      expect_only_refusal(result, 0, std::string("standard output could not be written: ") + reason);
      EXPECT_EQ(lines_in(run.dir() + "/metrics.jsonl"), 10U);  // the start, 6 steps, a checkpoint, validation and test
      EXPECT_TRUE(fs::exists(run.dir() + "/model/model.safetensors"));
      std::ifstream summary(run.dir() + "/summary.json");
      EXPECT_EQ(summary.peek(), '{') << "this file got the descriptor of standard output";
    }
  // A command whose output is its result fails when the output is lost.
  for (const auto& arguments :
       std::vector<std::string>{"config --explain train", "--help", "plugins", "eval " + run.dir()})
    for (const auto* to : {">&-", ">/dev/full"})
      expect_only_refusal(shell(std::string(TRIREME_COMMAND) + " " + arguments + " " + to), 7,
                          "standard output cannot be written");
}

std::size_t width_of(const std::string& line) {
  return static_cast<std::size_t>(
      std::count_if(line.begin(), line.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

std::vector<std::string> split_by_space(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> arguments;
  for (std::string word; stream >> word;) arguments.push_back(word);
  return arguments;
}

/// Expects every line to fit the screen. A line that is redrawn must fit each time.
void expect_fits(const std::string& text, int columns) {
  std::size_t begin = 0;
  const auto check = [&](std::string line) {
    if (const auto clear = line.find("\x1b[2K"); clear != std::string::npos) line = line.substr(clear + 4);
    const bool one_word = line.find_first_of(' ', line.find_first_not_of(' ')) == std::string::npos;
    EXPECT_TRUE(one_word || width_of(line) <= static_cast<std::size_t>(columns)) << columns << " columns: " << line;
  };
  for (std::size_t at = 0; at <= text.size(); ++at)
    if (at == text.size() || text[at] == '\n' || text[at] == '\r') {
      check(text.substr(begin, at - begin));
      begin = at + 1;
    }
}

TEST(Streams, LinesBreakBetweenWordsOnANarrowTerminal) {
  const SmallRun run(kLeaves, "epochs = 2\nglobal_batch = 8\n");
  const std::vector<std::vector<std::string>> commands{{"--help"},
                                                       {"train", "--help"},
                                                       {"config", "--explain", "train"},
                                                       {"config", "--explain", "plugin.hybrid_parallel"},
                                                       {"plugins", "torch_ddp"},
                                                       {"env"},
                                                       {"train", run.config, "--ranks", "two"},
                                                       {"train", run.config, "--set", "train.micro_batch=9"},
                                                       {"train", run.config, "--set", "optimizer.freeze=[\"bais\"]"}};
  for (auto command : commands) {
    command.insert(command.begin(), TRIREME_COMMAND);
    SCOPED_TRACE(command[1] + " " + (command.size() > 2 ? command.back() : ""));
    const auto wide = run_process(command, {.columns = 1000});
    for (const int columns : {40, 60, 80}) {
      const auto narrow = run_process(command, {.columns = columns});
      EXPECT_EQ(narrow.code, wide.code);
      for (const auto& [got, whole] : {std::pair{narrow.out, wide.out}, {narrow.err, wide.err}}) {
        expect_fits(got, columns);
        if (command[1] != "env") {  // free memory changes
          EXPECT_EQ(split_by_space(got), split_by_space(whole));
        }
      }
    }
  }
  for (const int columns : {40, 60, 80}) {
    const auto trained =
        run.train(2, {"--timeline", "--set", "parallel.pp=2", "--set", "train.micro_batch=2"}, {.columns = columns});
    EXPECT_EQ(trained.code, 0) << trained.err;
    expect_fits(trained.out, columns);
    EXPECT_NE(trained.out.find("rank 1  "), std::string::npos) << "the picture is missing: " << trained.out;
    std::size_t bars = 0;
    for (std::size_t at = 0; (at = trained.out.find("\x1b[2Kepoch ", at)) != std::string::npos; ++at) {
      const auto line = trained.out.substr(at, trained.out.find('\r', at) - at);
      if (line.find('\n') != std::string::npos) continue;  // the bar of an epoch that has ended
      EXPECT_NE(line.find(" left"), std::string::npos) << line;
      ++bars;
    }
    EXPECT_GT(bars, 0U) << trained.out;
  }
}

const ProcessOptions kRoot{.environment = {"OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"}};

std::vector<std::string> under_mpirun(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {TRIREME_TEST_MPIRUN, "-n", "3", "--oversubscribe", "--quiet", TRIREME_COMMAND});
  return arguments;
}

// mpirun may give its ranks terminals, whose output it forwards to pipes or files.
TEST(Streams, NoProgressBarUnderTheUsersLauncher) {
  const SmallRun run(kLeaves, "epochs = 2\nglobal_batch = 8\n");
  auto options = kRoot;
  options.columns = 80;
  const auto result = run_process(under_mpirun({"train", run.config}), options);
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.out.find('\x1b'), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("done in"), std::string::npos) << result.out;
}

TEST(Streams, OneRankPrintsUnderTheUsersLauncher) {
  const SmallRun run;
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"plugins", "torch_ddp"},
        {"config", run.config},
        {"config", "--explain", "train.epochs"},
        {"--version"},
        {"data", "leaves", "--out", run.dir() + "/leaves", "--images", "30"}}) {
    SCOPED_TRACE(arguments.front());
    auto alone = arguments;
    alone.insert(alone.begin(), TRIREME_COMMAND);
    const auto several = run_process(under_mpirun(arguments), kRoot);
    EXPECT_EQ(several.code, 0) << several.err;
    fs::remove_all(run.dir() + "/leaves");
    EXPECT_EQ(several.out, run_process(alone).out);
  }
  for (const auto& [arguments, says] :
       {std::pair{std::vector<std::string>{"train", run.config, "--ranks", "2"}, "--ranks conflicts with the launcher"},
        {{"eval", run.config, run.config, "--ranks", "2"}, "--ranks conflicts with the launcher"},
        {{"train", run.config, "--rank", "2"}, "no option --rank; did you mean \"--ranks\"?"},
        {{"config", run.config, "--set", "train.epohcs=1"}, "no key \"epohcs\""},
        {{"verify", run.config, "--layouts", "dp=1; dp=2"}, "run them without mpirun"},
        {{"train", "/dev/stdin"}, "/dev/stdin: every rank has to read this file"},
        {{"train", run.config, "--set", "train.global_batch=2"}, "cannot be split over 3 data-parallel ranks"}})
    expect_only_refusal(run_process(under_mpirun(arguments), kRoot), 2, says);
}

// The shell of `srun --pty` has the variables of a task of Slurm, and is none.
TEST(Streams, AnInteractiveStepOfSlurmMayStartRanks) {
  if (run_process({"sh", "-c", ": </dev/tty"}, {.columns = 80}).code != 0)
    GTEST_SKIP() << "NOT TESTED: this machine gives programs no terminal";
  const SmallRun run;
  const ProcessOptions step{.environment = {"SLURM_STEP_ID=0", "SLURM_PROCID=0", "SLURM_LOCALID=0", "SLURM_NTASKS=4",
                                            "SLURM_STEP_NUM_TASKS=4", "SLURM_TASK_PID=1", "SLURM_PTY_PORT=40000"}};
  auto in_shell = step;
  in_shell.columns = 80;
  const auto result = run.train(2, {}, in_shell);
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_NE(result.out.find("2 ranks on 1 host"), std::string::npos) << result.out;
  // What srun starts has no terminal.
  expect_only_refusal(run_process({"setsid", "-w", TRIREME_COMMAND, "train", run.config, "--ranks", "2"}, step), 2,
                      "--ranks conflicts with the launcher");
}

// With an old copy of the file on one machine, for example, the ranks would train with different settings.
TEST(Streams, RanksWithDifferentSettingsAreRefused) {
  const SmallRun run;
  const auto first_and_second = [&](const std::vector<std::string>& one, const std::vector<std::string>& other) {
    std::vector<std::string> arguments{TRIREME_TEST_MPIRUN, "--oversubscribe", "--quiet"};
    for (const auto* part : {&one, &other}) {
      arguments.insert(arguments.end(), {"-n", "1", TRIREME_COMMAND});
      arguments.insert(arguments.end(), part->begin(), part->end());
      if (part == &one) arguments.emplace_back(":");
    }
    return run_process(arguments, kRoot);
  };
  const std::vector<std::string> train{"train", run.config};
  const auto with = [&](const std::string& setting) {
    return std::vector<std::string>{"train", run.config, "--set", setting};
  };
  expect_refusal(first_and_second(train, with("optimizer.lr=0.1")), 2,
                 "rank 1 has optimizer.lr = 0.1, but rank 0 does not set it; start all ranks with the same file");
  expect_refusal(first_and_second(with("train.epochs=3"), train), 2, "rank 1 has train.epochs = 1, but rank 0 has 3");
  expect_refusal(first_and_second(with("run.seed=3"), train), 2, "rank 1 does not set run.seed, but rank 0 has 3");
  expect_refusal(first_and_second(train, {"train", run.config, "--resume", "must"}), 2,
                 "rank 1 has run.resume = must, but rank 0 has auto");
  expect_refusal(first_and_second({"train", run.config, "--timeline"}, train), 2,
                 "rank 1 runs train, but rank 0 runs train --timeline");
  expect_refusal(first_and_second(train, with("data.images=90")), 2, "rank 1 has");
  EXPECT_FALSE(fs::exists(run.dir())) << "refused before the run begins";
  EXPECT_EQ(first_and_second(train, with("run.threads=1")).code, 0);
}

TEST(Streams, ALauncherWhoseOutputNobodyReadsObeysASignal) {
  const auto line = own_time("600.375"), time = own_time("600.125");
  const auto command = "exec " TRIREME_COMMAND " launch -n 2 yes " + line + " > >(exec sleep " + time + ") 2>&1";
  // Nobody reads what the ranks write: they sleep, each time one looks.
  const auto wait_until_full = [&](pid_t launcher) {
    int asleep = 0;
    EXPECT_TRUE(wait_until([&] {
      auto ranks = processes_with(line);
      std::erase(ranks, launcher);
      const auto sleeps = [](pid_t rank) { return state_of(rank) == 'S'; };
      asleep = ranks.size() == 2 && std::all_of(ranks.begin(), ranks.end(), sleeps) ? asleep + 1 : 0;
      return asleep == 40;
    }));
  };
  const auto stopped = run_process({"bash", "-c", command}, {.meanwhile = [&](pid_t launcher) {
                                     wait_until_full(launcher);
                                     kill(launcher, SIGTERM);
                                   }});
  EXPECT_EQ(stopped.code, 128 + SIGTERM);
  EXPECT_FALSE(stopped.hung);
  EXPECT_TRUE(all_gone(line));
  for (const auto reader : processes_with(time)) kill(reader, SIGKILL);
}

// `head` closes the pipe after a line. The ranks' temporary files are removed nevertheless.
TEST(Streams, AClosedPipeLeavesNoFilesBehind) {
  const SmallRun run;
  const TemporaryFolder temporary;
  const auto out = shell("set -o pipefail; TMPDIR=" + temporary.path() + " " TRIREME_COMMAND " verify " + run.config +
                         " --layouts 'dp=1; dp=2; dp=1' | head -n 1");
  EXPECT_EQ(out.code, 128 + SIGPIPE) << out.err;
  EXPECT_EQ(out.err, "");
  EXPECT_TRUE(fs::is_empty(temporary.path()));
}

// The kernel sends SIGHUP only to the session leader, which is our process when there is no shell in between.
TEST(Streams, AClosedTerminalStopsTheRunAndSavesIt) {
  for (const int ranks : {1, 2}) {
    const SmallRun run(kManyLeaves, "epochs = 100000\nglobal_batch = 8\n");
    const auto result =
        run.train(ranks, {}, {.columns = 80, .hang_up = true, .meanwhile = [&](pid_t) { run.wait_for_steps(); }});
    EXPECT_EQ(result.code, 128 + SIGHUP) << result.err;
    EXPECT_TRUE(fs::exists(run.dir() + "/checkpoints")) << "not saved with " << ranks << " ranks";
    run.expect_all_gone();
  }
}

// A launcher that is killed cannot remove the folder of its ranks' records; the next one does.
TEST(Streams, TheNextStartRemovesWhatAKilledLauncherHasLeft) {
  const SmallRun run(kLeaves, "epochs = 100000\nglobal_batch = 8\n"), next;
  std::string left;
  const auto killed = run.train(2, {}, {.meanwhile = [&](pid_t launcher) {
                                  run.wait_for_steps();
                                  const auto ranks = run.ranks();
                                  if (!ranks.empty()) left = variable_of(ranks.front(), "TRIREME_FLIGHT_FOLDER");
                                  EXPECT_TRUE(fs::is_directory(left)) << "nothing would be left: " << left;
                                  kill(launcher, SIGKILL);
                                }});
  EXPECT_EQ(killed.code, 128 + SIGKILL);
  run.expect_all_gone();
  EXPECT_EQ(next.train(2).code, 0);
  EXPECT_TRUE(wait_until([&] { return !fs::exists(left); })) << left;  // a launcher beside this test may remove it
}

// Our messages replace those of CLI11.
TEST(Streams, CommandLineErrorsHaveOurMessages) {
  const SmallRun run;
  const std::string command = TRIREME_COMMAND, train = command + " train " + run.config;
  for (const auto& [line, says] : {std::pair{train + " --ranks x", "--ranks x: must be an integer"},
                                   {train + " --ranks", "--ranks needs a value"},
                                   {train + " --ranks 2 --ranks 3", "--ranks is given more than once"},
                                   {train + " --resume ''", "give auto, must, a checkpoint or a run folder"},
                                   {command + " --set train.epochs=1 train x", "--set stands before the command"},
                                   {command + " eval x --set optimizer.lr=3", "has no effect in an evaluation"},
                                   {command + " eval x --set lora.weights=y", "has no effect in an evaluation"},
                                   {command + " eval x --set model.weights=y", "as its first argument"}})
    expect_only_refusal(shell(line), 2, says);
}

TEST(Streams, ExplainAPluginThatIsNamedByItsPath) {
  const SmallRun run;
  const auto plugin = fs::path(TRIREME_COMMAND).parent_path().parent_path() / "lib/trireme/plugins/torch_ddp.so";
  fs::create_directories(run.dir());
  const auto mine = run.dir() + "/mine.so";
  fs::copy_file(plugin, mine);
  const auto listed = run_process({TRIREME_COMMAND, "plugins", mine});
  EXPECT_EQ(listed.code, 0) << listed.err;
  EXPECT_NE(listed.out.find(mine), std::string::npos) << listed.out;
  EXPECT_NE(listed.out.find("bucket_cap_mb = 25"), std::string::npos) << listed.out;
  EXPECT_EQ(listed.out.find("gemini"), std::string::npos) << listed.out;
  expect_only_refusal(run_process({TRIREME_COMMAND, "plugins", "gemmini"}), 2, "did you mean \"gemini\"?");

  // The key is explained from the plugin that the path names.
  const ProcessOptions options{};
  const auto key = std::string("plugin.torch_ddp.bucket_cap_mb");
  const auto explained =
      run_process({TRIREME_COMMAND, "config", "--explain", key, "--set", "parallel.plugin=" + mine}, options);
  EXPECT_EQ(explained.code, 0) << explained.err;
  EXPECT_NE(explained.out.find("default  25"), std::string::npos) << explained.out;
  expect_only_refusal(run_process({TRIREME_COMMAND, "config", "--explain", "plugin.quinquereme"}), 2,
                      "give its path: --set parallel.plugin=PATH");
  const auto model = run_process({TRIREME_COMMAND, "config", "--explain", "model.name"});
  EXPECT_EQ(model.code, 0) << model.err;
  EXPECT_NE(model.out.find("\"bert\" or \"gpt2\" or \"llama\" or \"qwen3\" or \"resnet\" or \"vit\""),
            std::string::npos)
      << model.out;
}

}  // namespace
}  // namespace trireme::tests
