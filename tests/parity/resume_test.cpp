// Contract C8: a resumed run equals one that was never stopped, bit for bit in the same layout and within C1's bound in
// another. Runs the command as a user would, and compares what it wrote.
#include "tests/parity/resume.h"

#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <numeric>
#include <set>

#include "core/checkpoint/formats/safetensors.h"

namespace trireme::tests {
namespace {

TEST_F(Resume, SameLayoutBitForBit) {
  const auto whole = once(2, kConstant);
  // The run is resumed in the middle of an epoch of 6 steps, and at the end of one.
  for (const std::string step : {"step-00000004", "step-00000006"}) {
    train("from-" + step, 2, kConstant + "--resume " + checkpoint(whole, step));
    EXPECT_TRUE(bytes_of(model(whole)) == bytes_of(model("from-" + step))) << "resumed from " << step;
  }
  // A run is stopped by max_steps, then trained further in its own folder. (A cosine schedule would span the shorter
  // run.)
  train("stopped", 2, kConstant + "--set train.max_steps=7");
  train("stopped", 2, kConstant + "--resume must");
  EXPECT_TRUE(bytes_of(model(whole)) == bytes_of(model("stopped")));
  EXPECT_EQ(summary(whole).at("best"), summary("stopped").at("best")) << "the evaluation at the stop has no effect";
}

// The version before wrote full tensors, one file of each kind, which it resumed like this. Within C1's bound: the
// checkpoint's steps were computed on another CPU.
TEST_F(Resume, ACheckpointOfFormat1) {
  const auto of_before = root_ / "before";
  fs::copy(fs::path(TRIREME_SOURCE_DIR) / "tests/golden/checkpoint_format_1", of_before);
  std::ofstream(root_ / "run.toml") << bytes_of(fs::path(TRIREME_SOURCE_DIR) / "tests/golden/checkpoint_format_1.toml");
  for (const std::string layout : {"", "--set parallel.plugin=hybrid_parallel --set parallel.tp=2 "}) {
    train("whole", 2, layout + "--set run.keep_checkpoints=9");
    train("resumed", 2, layout + "--resume " + of_before.string());
    EXPECT_EQ(steps_of("resumed", "step"), (std::vector<int>{3, 4}));
    const checkpoint::SafeTensors whole(model("whole")), resumed(model("resumed"));
    for (const auto& [name, info] : whole.tensors())
      EXPECT_TRUE(resumed.read(name).allclose(whole.read(name), 1e-9, 1e-12)) << name;
  }
}

const std::string kStage1 = "--set parallel.plugin=low_level_zero --set plugin.low_level_zero.stage=1 ";
const std::string kStage3 =
    "--set parallel.plugin=gemini --set plugin.gemini.chunk_config=1000 --set plugin.gemini.max_prefetch=1 ";

// Pairs of layouts on equal numbers of ranks are in resume_matrix_test.cpp.
TEST_F(Resume, AnotherNumberOfRanksWithinTheBound) {
  const std::string fp64 = "--set train.precision=fp64 ";
  train("whole", 2, fp64);
  const checkpoint::SafeTensors expected(model("whole"));
  const auto compare = [&](const std::string& name) {
    const checkpoint::SafeTensors got(model(name));
    ASSERT_EQ(got.tensors().size(), expected.tensors().size());
    for (const auto& [tensor, info] : expected.tensors()) {
      const auto reference = expected.read(tensor);
      const double difference = (got.read(tensor) - reference).norm().item<double>();
      // A bias without gradient stays near zero: its last bits are the optimizer's noise.
      EXPECT_LE(difference, 1e-9 * std::max(reference.norm().item<double>(), 1e-2)) << tensor << " in " << name;
    }
  };
  struct Layout {
    const char *name, *from;
    int ranks;
    std::string keys;
  };
  const std::string small = "--set train.micro_batch=1 ";
  const std::string gathered = "--set parallel.zero=3 --set plugin.hybrid_parallel.zero_bucket_size_in_m=0.001 ";
  for (const auto& [name, from, ranks, keys] : std::vector<Layout>{
           {"stage-3", "whole", 3, kStage3 + small},
           {"back", "stage-3", 2, ""},
           {"sharded", "whole", 3, "--set data.shard_data=true " + small},
           {"dispatched", "sharded", 2, "--set data.dispatch=true "},
           {"gathered", "whole", 8,
            "--set parallel.tp=2 --set parallel.pp=2 --set parallel.schedule=zb_h1 " + small + gathered},
           {"back-from-gathered", "gathered", 2, gathered}}) {
    const auto step = std::string(from) == "whole" ? "step-00000004" : "step-00000008";
    train(name, ranks, fp64 + keys + "--resume " + checkpoint(from, step));
    compare(name);
  }
}

std::vector<int> up_to(int last) {
  std::vector<int> steps(static_cast<std::size_t>(last));
  std::iota(steps.begin(), steps.end(), 1);
  return steps;
}

TEST_F(Resume, RefusesAnotherTraining) {
  const auto from = checkpoint(once(1, "--set train.max_steps=4"), "step-00000004");
  const std::vector<std::pair<std::string, std::string>> of_steps{
      {"train.global_batch=16", "train.global_batch = 16 (it was 8)"},
      {"train.shuffle=false", "train.shuffle = false (it was true)"},
      {"train.drop_last=true", "train.drop_last = true (it was false)"},
      {"run.seed=1", "run.seed = 1 (it was 42)"},
      {"data.images=80", "train samples: 56 (it was 42)"},
      {"data.leaf_seed=8", "data.leaf_seed = 8 (it was 7)"},
      {"data.flip=false", "data.flip = false (it was true)"},
      {"data.mean=[0,0,0]", "data.mean = [0.0, 0.0, 0.0] (it was [0.5, 0.5, 0.5])"},
      {"data.image_size=24", "shape of pixel_values: [3,24,24] (it was [3,16,16])"},
      {"optimizer.name=sgd", "optimizer.name = \"sgd\" (it was \"hybrid_adam\")"},
  };
  const std::vector<std::pair<std::string, std::string>> of_model{
      {"model.dropout=0.2", "model.dropout = 0.2 (it was 0.1)"},
      {"model.num_heads=2", "model.num_heads = 2 (it was 3)"}};
  for (const auto& refused : {of_steps, of_model}) {  // each of the keys is refused
    std::string sets;
    for (const auto& [set, says] : refused) sets += " --set " + set;
    EXPECT_EQ(try_train("other", 1, "--resume " + from + sets), 7) << log("other");
    for (const auto& [set, says] : refused) EXPECT_NE(log("other").find(says), std::string::npos) << log("other");
    EXPECT_NE(log("other").find("Restore the old values"), std::string::npos) << log("other");
    EXPECT_FALSE(fs::exists(root_ / "other")) << "no folder is created or renamed before a refusal";
  }
  // The remedy that the message names works.
  train("anew", 1, "--set train.max_steps=1 --set train.shuffle=false --set model.weights=" + from);
  // These keys may change, and the log reports it.
  train("other", 2, "--resume " + from + " --set train.max_steps=5 --set optimizer.lr=1e-4 --set train.micro_batch=2");
  EXPECT_NE(log("other").find("changed   train.max_steps = 5 (it was 4), optimizer.lr = 0.0001 (it was 0.001)\n"),
            std::string::npos)
      << log("other");
  EXPECT_EQ(steps_of("other", "step"), std::vector<int>{5});
}

// A checkpoint's weights are fp32, except in fp64 and in half precision without master weights.
TEST_F(Resume, AnotherPrecisionWithTheSameStoredDtype) {
  const std::string bf16 = "--set train.precision=bf16 ",
                    raw = bf16 + kStage1 + "--set plugin.low_level_zero.master_weights=false ";
  const auto fp32 = once(1, "--set train.max_steps=4");
  train("raw", 1, raw + "--set train.max_steps=4");
  const auto from_fp32 = "--set train.max_steps=5 --resume " + checkpoint(fp32, "step-00000004"),
             from_raw = " --set train.max_steps=5 --resume " + checkpoint("raw", "step-00000004");
  train("half", 2, bf16 + kStage3 + from_fp32);
  EXPECT_NE(log("half").find("train.precision = \"bf16\" (it was \"fp32\")"), std::string::npos) << log("half");
  train("same", 1, raw + from_raw);
  const std::string keys = "train.precision = \"bf16\", plugin.low_level_zero.master_weights = false";
  struct Row {
    std::string sets, says;
  };
  for (const auto& [sets, says] :
       {Row{raw + from_fp32,
            "holds weights in fp32 (train.precision = \"fp32\"), but this run updates them in bf16 (" + keys + ")"},
        Row{bf16 + kStage1 + from_raw, "holds weights in bf16 (" + keys +
                                           "), but this run updates them in fp32 (train.precision = \"bf16\", "
                                           "plugin.low_level_zero.master_weights = true)"},
        Row{"--set train.precision=fp64 " + from_fp32, "but this run updates them in fp64"}}) {
    EXPECT_EQ(try_train("other", 1, sets), 7) << log("other");
    EXPECT_NE(log("other").find(says), std::string::npos) << log("other");
    EXPECT_FALSE(fs::exists(root_ / "other")) << "no folder is created or renamed before a refusal";
  }
  // The remedy that the message names works.
  train("anew", 1, "--set train.max_steps=1 --set model.weights=" + checkpoint("raw", "step-00000004"));
}

TEST_F(Resume, RewindsToAnEarlierStep) {
  const auto whole = once(1, kConstant);
  EXPECT_EQ(steps_of(whole, "step"), up_to(18));
  fs::copy(whole, root_ / "run", fs::copy_options::recursive);
  // One crash cut off a line, to which a later run appended; another crash cut off the last line.
  std::ofstream(root_ / "run" / "metrics.jsonl", std::ios::app)
      << "{\"kind\": \"st{\"kind\": \"step\"}\n{\"kind\": \"st";
  train("run", 1, kConstant + "--set train.max_steps=10 --resume " + checkpoint("run", "step-00000008"));
  EXPECT_EQ(steps_of("run", "step"), up_to(10));
  EXPECT_EQ(steps_of("run", "eval", "validation"), (std::vector<int>{6, 10}));
  EXPECT_EQ(steps_of("run", "eval", "test"), std::vector<int>{10});
  EXPECT_EQ(checkpoints("run"),
            (std::set<std::string>{"step-00000004", "step-00000006", "step-00000008", "step-00000010",
                                   "step-00000012.aside", "step-00000016.aside", "step-00000018.aside"}));
  EXPECT_NE(log("run").find("aside     checkpoints of later steps renamed: "), std::string::npos) << log("run");
  EXPECT_NE(log("run").find("lines after step 8 dropped"), std::string::npos) << log("run");
  const auto times = summary("run")["times"];
  EXPECT_EQ(times["starts"], 2) << times;
  for (const auto* part : {"training", "start-up", "evaluation", "lost", "idle"}) EXPECT_GT(times[part], 0) << times;
  // The newest checkpoint is now the rewound run's, which ends like the run that never stopped.
  train("run", 1, kConstant + "--resume must");
  EXPECT_NE(log("run").find("step-00000010: epoch 2, step 10\n"), std::string::npos) << log("run");
  EXPECT_EQ(steps_of("run", "step"), up_to(18));
  EXPECT_EQ(steps_of("run", "eval", "test"), std::vector<int>{18});
  EXPECT_TRUE(bytes_of(model(whole)) == bytes_of(model("run")));
}

TEST_F(Resume, AFinishedRunKeepsItsResult) {
  fs::copy(once(1, kConstant), root_ / "run", fs::copy_options::recursive);
  const auto first = summary("run");
  EXPECT_GT(first["final"]["validation_accuracy"], 0.0);
  train("run", 1, kConstant + "--resume must");
  const auto again = summary("run");
  for (const auto* key : {"final", "best", "steps", "samples"}) EXPECT_EQ(again[key], first[key]) << key;
  EXPECT_EQ(again, first) << "nothing was left to do";
  EXPECT_EQ(steps_of("run", "eval", "validation"), (std::vector<int>{6, 12, 18}));
  train("copy", 1, kConstant + "--resume " + (root_ / "run").string());  // a run's folder: its newest checkpoint
  EXPECT_EQ(summary("copy")["resumed_at_step"], 18);
  // The run ends in the middle of an epoch, where no evaluation was made.
  train("short", 1, kConstant + "--set train.max_steps=8 --resume " + checkpoint("run", "step-00000008"));
  EXPECT_EQ(steps_of("short", "eval", "validation"), std::vector<int>{8});
  EXPECT_GT(summary("short")["final"]["validation_loss"], 0.0);
}

TEST_F(Resume, CountsSkippedStepsThroughout) {
  const std::string fp16 = kConstant + "--set train.precision=fp16 --set train.initial_scale=4294967296 ";
  train("whole", 1, fp16);
  const int skipped = summary("whole")["skipped_steps"];
  EXPECT_GT(skipped, 0);
  train("rest", 1, fp16 + "--resume " + checkpoint("whole", "step-00000012"));
  EXPECT_EQ(summary("rest")["skipped_steps"], skipped);
}

TEST_F(Resume, AutoWithoutACheckpointStartsAnew) {
  train("run", 1, "--set run.keep_checkpoints=0 --set run.checkpoint_every=0 --set train.max_steps=2");
  train("run", 1, "--set train.max_steps=3");
  EXPECT_EQ(steps_of("run.1", "step"), up_to(2));
  EXPECT_EQ(steps_of("run", "step"), up_to(3));
  EXPECT_NE(log("run").find("earlier   run moved to "), std::string::npos) << log("run");
  // When the checkpoint is of another folder, the run in this folder is another one and is moved aside.
  train("other", 1, "--set train.max_steps=4 --resume " + checkpoint("run", "step-00000003"));
  train("other", 1, "--set train.max_steps=5 --resume " + checkpoint("run", "step-00000003"));
  EXPECT_EQ(steps_of("other.1", "step"), std::vector<int>{4});
  EXPECT_EQ(steps_of("other", "step"), (std::vector<int>{4, 5}));
}

TEST_F(Resume, WritesACheckpointOnceAStep) {
  const auto watch_while = [&](const std::string& folder, const std::function<void()>& action) {
    const int watch = inotify_init1(IN_NONBLOCK);
    inotify_add_watch(watch, folder.c_str(), IN_MOVED_TO);
    action();
    std::map<std::string, int> times;
    alignas(inotify_event) char buffer[8192];
    for (ssize_t got; (got = read(watch, buffer, sizeof buffer)) > 0;)
      for (char* at = buffer; at < buffer + got;) {
        const auto* event = reinterpret_cast<const inotify_event*>(at);
        ++times[event->name];
        at += sizeof(inotify_event) + event->len;
      }
    close(watch);
    return times;
  };
  train("run", 1, kConstant + "--set train.max_steps=4");
  const auto times =
      watch_while((root_ / "run" / "checkpoints").string(), [&] { train("run", 1, kConstant + "--resume must"); });
  EXPECT_EQ(times, (std::map<std::string, int>{{"step-00000006", 1},
                                               {"step-00000008", 1},
                                               {"step-00000012", 1},
                                               {"step-00000016", 1},
                                               {"step-00000018", 1}}));
}

}  // namespace
}  // namespace trireme::tests
