// Commands that start no training: help, versions, and refusals of the launcher program.
#include <filesystem>

#include "tests/command/refusal.h"

namespace trireme::tests {
namespace {

namespace fs = std::filesystem;

ProcessResult trireme(std::vector<std::string> arguments, const ProcessOptions& options = {}) {
  arguments.insert(arguments.begin(), TRIREME_COMMAND);
  return run_process(arguments, options);
}

const char* const kGood = "[data]\nname = \"leaves\"\n";

TEST(Command, AnswersHelpAndVersion) {
  const auto help = trireme({"--help"});
  EXPECT_EQ(help.code, 0);
  EXPECT_EQ(help.err, "");
  for (const auto* word : {"train", "eval", "predict", "generate", "data", "plugins", "config", "env", "launch",
                           "Examples:", "Exit codes:"})
    EXPECT_NE(help.out.find(word), std::string::npos) << word;
  EXPECT_EQ(trireme({}).out, help.out);
  EXPECT_NE(trireme({"train", "--help"}).out.find("--resume"), std::string::npos);
  EXPECT_EQ(trireme({"launch", "--help"})
                .out.find("Start ranks of any program on this machine\n"
                          "Usage: trireme launch [OPTIONS] PROGRAM [ARGUMENTS...]\n"),
            0U);
  const auto version = trireme({"--version"});
  EXPECT_EQ(version.code, 0);
  EXPECT_EQ(version.out, std::string("trireme ") + TRIREME_TEST_VERSION + "\n");
}

TEST(Command, RefusesWhatItDoesNotUnderstand) {
  const TemporaryFolder folder;
  const auto good = folder.write("good.toml", kGood);
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases{
      {{"trian", "a.toml"},
       "no command \"trian\" (known: train, eval, predict, generate, tokenize, verify, bench, tune, plan, checkpoint, "
       "inspect, "
       "runs, "
       "top, "
       "plot, data, plugins, config, env, launch); did "
       "you mean "
       "\"train\"?  "
       "(trireme "
       "--help)"},
      {{"train"}, "CONFIG is required  (trireme train --help)"},
      {{"train", good, "more"}, "unexpected argument \"more\"  (trireme train --help)"},
      {{"train", good, "--rank", "2"}, "no option --rank; did you mean \"--ranks\"?  (trireme train --help)"},
      {{"train", good, "--ranks", "0"}, "--ranks 0: must be at least 1 and at most 4096"},
      {{"train", good, "--ranks", "-2"}, "--ranks -2: must be at least 1"},
      {{"train", good, "--ranks", "two"}, "two"},
      {{"data"}, "no command given (known: leaves)  (trireme data --help)"},
      {{"data", "leaves", "--out", "x", "--images", "1"}, "--images 1: must be at least 30"},
      {{"data", "leaves", "--out", "x", "--images", "9223372036854775807"}, "at least 30 and at most 10000000"},
      {{"data", "leaves", "--out", "x", "--size", "15"}, "--size 15: must be at least 16 and at most 4096"},
      {{"data", "leaves", "--out", "x", "--size", "4097"}, "--size 4097: must be at least 16 and at most 4096"},
      {{"config"}, "name a TOML file, or use --explain KEY"},
      {{"train", good, "--set", "train.epohcs=5"},
       "--set train.epohcs=5: no key \"epohcs\" in [train]; did you mean \"epochs\"?  (trireme config --explain "
       "train)"},
      {{"train", good, "--set", "train.epochs=many"}, "--set train.epochs=many: must be an integer, not a string"},
      {{"train", good, "--set", "epochs=5"}, "write --set SECTION.KEY=VALUE"},
      {{"train", good, "--set"}, "--set"},
      {{"train", good, "--set", "train.epochs", "=", "3"}, "write it without spaces: --set train.epochs=VALUE"},
      {{"train", good, "--set", "train.epochs=", "3"}, "write it without spaces: --set train.epochs=3"},
      {{"train", good, "--resume", "--timeline"}, "--resume --timeline: give auto, must, a checkpoint or a run folder"},
      {{"eval", "runs/x", "--report", "x.toml"}, "--report x.toml: the name of the file must end in .json"},
      {{"predict", "runs/x"}, "FILE is required  (trireme predict --help)"},
      {{"predict", "runs/x", "a.png", "--top", "0"}, "--top 0: must be at least 1 and at most 1000"},
      {{"predict", "runs/x", "a.png", "--csv", "--jsonl"}, "--csv and --jsonl: both say how to print; remove one"},
      {{"predict", "runs/x", "a.png", "--batch", "0"}, "--batch 0: must be at least 1 and at most 65536"},
      {{"predict", "runs/x", "a.png"},
       "runs/x: no such file or folder; name a run folder or a checkpoint, or the weights and the TOML file"},
      {{"eval", "runs/x"},
       "runs/x: no such file or folder; name a run folder or a checkpoint, or the weights and the TOML file"},
      {{"eval", "/usr"},
       "/usr: not a run folder or a checkpoint, for it has no config.toml; name a run folder or a checkpoint, or"},
  };
  for (const auto& [arguments, expected] : cases) {
    SCOPED_TRACE(expected);
    expect_only_refusal(trireme(arguments), 2, expected);
  }
}

TEST(Command, RefusesABadFileOnceOnAnyNumberOfRanks) {
  const TemporaryFolder folder;
  const std::vector<std::pair<std::string, std::string>> cases{
      {"[train]\nepochs = \"three\"\n", ":2:1: train.epochs = \"three\": must be an integer, not a string"},
      {"[train]\nepohcs = 3\n", ":2:1: no key \"epohcs\" in [train]; did you mean \"epochs\"?"},
      {"[trian]\nepochs = 3\n", ":1:2: no section [trian]"},
      {"[train\n", ":1:7: not valid TOML: "},
      {"[model]\nname = \u201cvit\u201d\n", "; a typographic quote is in this line: a string needs plain ones, \""},
      {"[model]\nname = \"caf\xe9\"\n", "not valid TOML: it is not UTF-8 text; save it as UTF-8"},
      {"[data]\npath = \"C:\\users\"\n", "a backslash begins an escape sequence: write \\\\ for one"},
      {"[data]\nbatch_size = 4\n", ":2:1: no key \"batch_size\" in [data]; use train.global_batch, or"},
      {"[parallel]\ntensor_parallel = 2\n", ":2:1: no key \"tensor_parallel\" in [parallel]; use parallel.tp"},
      {"[optimizer]\nparallel = {tp = 2}\n", "write its keys below a line [parallel] of their own"},
      {"[data]\nname = \"leaves\"\n[train]\nglobal_batch = 4\nmicro_batch = 8\n",
       ":5:1: train.micro_batch = 8: is more than global_batch = 4"},
  };
  for (const auto& [text, expected] : cases) {
    const auto path = folder.write("bad.toml", text);
    for (const auto* ranks : {"1", "4"}) {
      SCOPED_TRACE(expected);
      const auto result = trireme({"train", path, "--ranks", ranks});
      expect_only_refusal(result, 2, expected);
      EXPECT_NE(result.err.find("bad.toml:"), std::string::npos) << result.err;
    }
  }
  const auto gone = run_process(
      {"sh", "-c", "mkdir gone && cd gone && rmdir ../gone && exec " + std::string(TRIREME_COMMAND) + " plugins"},
      {.folder = folder.path()});
  expect_only_refusal(gone, 2, "the current folder was deleted; change to another one");
  expect_only_refusal(trireme({"train", "/nowhere/a.toml"}), 2, "/nowhere/a.toml: cannot be read: No such file");
  const auto good = folder.write("good.toml", kGood);
  expect_only_refusal(
      trireme({"train", good, "--ranks", "2"}, {.environment = {"OMPI_COMM_WORLD_SIZE=2", "OMPI_COMM_WORLD_RANK=0"}}),
      2, "--ranks conflicts with the launcher");
  const ProcessOptions another_mpi{.environment = {"PMI_SIZE=2", "PMI_RANK=0"}};
  for (const auto& more : {std::vector<std::string>{}, {"--ranks", "2"}}) {
    auto words = more;
    words.insert(words.begin(), {"train", good});
    expect_only_refusal(trireme(words, another_mpi), 2, "PMI_SIZE=2");
  }
}

// The launcher refuses without any other part of Trireme, so a refusal takes milliseconds on any number of ranks.
TEST(Command, TheLauncherRefusesAlone) {
  const TemporaryFolder folder;
  fs::create_directories(folder.path() + "/bin");
  const auto launcher = folder.path() + "/bin/trireme";
  fs::copy_file(TRIREME_COMMAND, launcher);
  const auto bad = folder.write("bad.toml", "[train\nepochs = 1\n");
  expect_only_refusal(run_process({launcher, "train", bad, "--ranks", "4"}), 2, "bad.toml:1:7");
  EXPECT_EQ(run_process({launcher, "--version"}).code, 0);
  const auto good = folder.write("good.toml", kGood);
  expect_only_refusal(run_process({launcher, "train", good}), 2, "the build or the installation is not complete");
  expect_only_refusal(run_process({launcher, "train", good, "--ranks", "2"}), 2, "trireme-worker is missing");
}

TEST(Command, RefusesThreadsThatOpenMpCannotMake) {
  for (const auto* threads : {"99999", "0", "abc"})
    expect_only_refusal(trireme({"env"}, {.environment = {std::string("OMP_NUM_THREADS=") + threads}}), 2,
                        "must be a number from 1 to 4096");
}

TEST(Command, ReportsItsEnvironment) {
  const auto env = trireme({"env"});
  EXPECT_EQ(env.code, 0);
  EXPECT_EQ(env.err, "");
  for (const std::string row : {"Trireme ", "LibTorch ", "compiler ", "CUDA toolkit ", "NCCL ", "MPI ", "GPUs ", "CPU ",
                                "cores ", "memory ", "environment "})
    EXPECT_NE(("\n" + env.out).find("\n" + row), std::string::npos) << row << "in\n" << env.out;
  EXPECT_EQ(env.out.find("unknown"), std::string::npos) << env.out;
  // Variables of a launcher that are wrong do not keep a bug report from being written.
  const auto broken = trireme({"env"}, {.environment = {"RANK=0", "WORLD_SIZE=2"}});
  EXPECT_EQ(broken.code, 0) << broken.err;
  EXPECT_NE(broken.out.find("started by"), std::string::npos) << broken.out;
  EXPECT_NE(broken.out.find("MASTER_ADDR is not set"), std::string::npos) << broken.out;
}

TEST(Command, ExplainsAndPrintsOptions) {
  const auto explained = trireme({"config", "--explain", "train.micro_batch"});
  EXPECT_EQ(explained.code, 0);
  EXPECT_EQ(explained.out.rfind("train.micro_batch\n", 0), 0U) << explained.out;
  EXPECT_NE(trireme({"config", "--explain", "model"}).out.find("model.hidden_size"), std::string::npos);
  EXPECT_NE(trireme({"config", "--explain", "plugin.torch_ddp"}).out.find("bucket_cap_mb"), std::string::npos);
  expect_only_refusal(trireme({"config", "--explain", "train.micro_bacth"}), 2,
                      "--explain train.micro_bacth: no such option; did you mean \"train.micro_batch\"?");

  const TemporaryFolder folder;
  const auto good = folder.write("good.toml", kGood);
  const auto printed = trireme({"config", good, "--print", "--set", "train.epochs=7"});
  EXPECT_EQ(printed.code, 0) << printed.err;
  EXPECT_NE(printed.out.find("epochs = 7\n"), std::string::npos) << printed.out;
  const auto again = trireme({"config", folder.write("again.toml", printed.out), "--print"});
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(again.out, printed.out);
  EXPECT_EQ(trireme({"config", good}).code, 0);
  expect_only_refusal(trireme({"config", good, "--print", "--set", "plugin.torch_ddp.bucket_cap=3"}), 2,
                      "no key \"bucket_cap\" in [plugin.torch_ddp]");
  for (const auto* command : {"config", "train"})
    expect_only_refusal(trireme({command, good, "--set", "plugin.nothing_such.x=3"}), 2,
                        "--set plugin.nothing_such.x=3: [plugin.nothing_such] is not the section of any plugin");
  expect_only_refusal(trireme({"config", good, "--print", "--set", "model.hiden_size=3"}), 2,
                      "no key \"hiden_size\" in [model]; did you mean \"hidden_size\"?");
}

TEST(Command, ListsPlugins) {
  const auto plugins = trireme({"plugins"});
  EXPECT_EQ(plugins.code, 0) << plugins.err;
  for (const auto* word : {"torch_ddp", TRIREME_TEST_VERSION, "torch_ddp.so", "bucket_cap_mb = ", "static_graph = "})
    EXPECT_NE(plugins.out.find(word), std::string::npos) << word << " in\n" << plugins.out;
}

// A command whose output pipe is closed ends without a message.
TEST(Command, EndsQuietlyWhenItsPipeIsClosed) {
  const auto result = run_process({"bash", "-c",
                                   std::string("set -o pipefail; for i in 1 2 3; do ") + TRIREME_COMMAND +
                                       " config --markdown; done | head -1 >/dev/null"});
  EXPECT_FALSE(result.hung);
  EXPECT_EQ(result.err, "");
}

}  // namespace
}  // namespace trireme::tests
