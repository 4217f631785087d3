// The scripts of the examples: they refuse wrong arguments in one line, and leave no process when a signal ends them. A
// script of the test takes the place of the command `trireme`.
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/command/launch.h"

namespace trireme::tests {
namespace {

const std::string kExamples = TRIREME_SOURCE_DIR "/examples/";

struct Compare {
  explicit Compare(const std::string& script) : trireme(folder.write("trireme", "#!/bin/sh\n" + script + "\n")) {
    std::filesystem::permissions(trireme, std::filesystem::perms::owner_all);
    (void)folder.write("data/train/class/none.jpg", "");
  }
  [[nodiscard]] ProcessResult run(const std::vector<std::string>& more, ProcessOptions options = {}) const {
    std::vector<std::string> command{"bash", kExamples + "resnet_imagefolder/compare.sh", "--data",
                                     folder.path() + "/data"};
    command.insert(command.end(), more.begin(), more.end());
    options.environment = {"TRIREME=" + trireme};
    return run_process(command, options);
  }
  TemporaryFolder folder;
  std::string trireme;
};

TEST(CompareScript, ASignalToItAloneEndsTheTraining) {
  for (const auto& [number, code] : {std::pair{SIGTERM, 143}, {SIGINT, 130}}) {
    const Compare compare("trap 'kill $!; exit 143' TERM\nsleep 600 &\nwait");
    const auto result =
        compare.run({"--out", compare.folder.path() + "/out"}, {.meanwhile = [&, signal = number](pid_t script) {
                      wait_for_processes(compare.trireme, 1);
                      kill(script, signal);
                    }});
    EXPECT_FALSE(result.hung);
    EXPECT_EQ(result.code, code) << result.err;
    EXPECT_TRUE(all_gone(compare.trireme));
  }
}

TEST(CompareScript, StopsAtAMistakeOfAllWays) {
  const Compare compare("echo 'trireme: --set model.dpeth=50: no key' >&2; exit 2");
  const auto result = compare.run({"--out", compare.folder.path() + "/out", "--set", "model.dpeth=50"});
  EXPECT_EQ(result.code, 2);
  EXPECT_NE(result.err.find("  trireme: --set model.dpeth=50: no key\n"), std::string::npos) << result.err;
  EXPECT_EQ(lines_of(result.err).size(), 3U) << result.err;
  const auto unwritable = compare.run({"--out", "/proc/x"});
  EXPECT_EQ(unwritable.code, 2);
  EXPECT_EQ(unwritable.err.find("compare.sh: --out /proc/x: "), 0U) << unwritable.err;
  EXPECT_EQ(lines_of(unwritable.err).size(), 1U) << unwritable.err;
}

// The command itself: BERT on a table of a few sentences.
TEST(BertScript, ComparesTheRunsInOnePage) {
  const TemporaryFolder folder;
  std::string table = "sentence\tlabel\n";
  for (int i = 0; i < 60; ++i) table += (i % 2 == 0 ? "a good film\t1\n" : "not a film that one likes\t0\n");
  for (const auto* split : {"/train.tsv", "/dev.tsv"}) (void)folder.write(std::string("data") + split, table);
  (void)folder.write("bert/vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\ngood\nfilm\nnot\nthat\none\nlikes\n");
  const auto out = folder.path() + "/out";
  const auto result =
      run_process({"bash", kExamples + "bert_sst2/compare.sh", "--data", folder.path() + "/data", "--tokenizer",
                   folder.path() + "/bert", "--seconds", "1", "--out", out, "--set", "train.max_steps=2"},
                  {.environment = {std::string("TRIREME=") + TRIREME_COMMAND}});
  EXPECT_EQ(result.code, 0) << result.err << result.out;
  EXPECT_NE(result.out.find("/compare.html: 4 runs, "), std::string::npos) << result.out;
  EXPECT_EQ(count_of(result.out, "ms of a step "), 2) << result.out;
  for (const auto* name : {"baseline_1", "baseline_2", "optimised_1", "optimised_2"})
    EXPECT_TRUE(std::filesystem::exists(out + "/" + name + "/summary.json")) << name;
  const auto again = run_process({"bash", kExamples + "bert_sst2/compare.sh", "--data", folder.path()},
                                 {.environment = {std::string("TRIREME=") + TRIREME_COMMAND}});
  EXPECT_EQ(again.code, 2);
  EXPECT_NE(again.err.find("has no train.tsv; name the folder of SST-2 with --data FOLDER"), std::string::npos);
}

TEST(Scripts, RefuseInOneLine) {
  const auto sbatch =
      run_process({"bash", kExamples + "slurm/train.sbatch", "run.toml"}, {.environment = {"SLURM_JOB_ID"}});
  EXPECT_EQ(sbatch.code, 2);
  EXPECT_EQ(sbatch.out, "train.sbatch: this is no Slurm job; run: sbatch train.sbatch run.toml\n");
  EXPECT_EQ(sbatch.err, "");
  const auto table = [](const std::string& argument) {
    return run_process({"python3", kExamples + "resnet_imagefolder/table.py", argument});
  };
  EXPECT_EQ(table("runs/a").err.find("Prints a Markdown table of runs: table.py LABEL=DEVICES=RUN"), 0U);
  const auto missing = table("one=1=/nowhere");
  EXPECT_EQ(missing.code, 2);
  EXPECT_EQ(missing.err, "table.py: no complete run: [Errno 2] No such file or directory: '/nowhere/summary.json'\n");
}

}  // namespace
}  // namespace trireme::tests
