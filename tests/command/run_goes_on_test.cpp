// Tests what a run that goes on keeps of its files, and does without when they are damaged.
#include "tests/command/metrics.h"

namespace trireme::tests {
namespace {

TEST(RunGoesOn, TheBestWeightsSurviveAResume) {
  const auto arguments = [](std::initializer_list<std::string> more) {
    auto all = sets({"run.checkpoint_every=4", "run.keep_checkpoints=9"}, kSpoilt);
    return sets(more, all);
  };
  const std::string train = "epochs = 3\nglobal_batch = 8\n";
  const SmallRun whole(kLeaves, train), run(kLeaves, train);
  train_well(whole, 1, kSpoilt);
  const auto expected = json_of(whole.dir() + "/summary.json")["best"];
  const auto best = content_of(whole.dir() + "/model-best/model.safetensors");
  const auto expect_same = [&](const std::string& dir) {
    EXPECT_EQ(json_of(dir + "/summary.json")["best"], expected);
    EXPECT_TRUE(content_of(dir + "/model-best/model.safetensors") == best) << dir;
    EXPECT_TRUE(fs::exists(dir + "/model-best/config.json"));
  };
  train_well(run, 1, arguments({"train.max_steps=12"}));
  const auto resume = [&](int ranks, const std::string& from, std::initializer_list<std::string> more = {}) {
    auto all = arguments(more);
    all.insert(all.end(), {"--resume", from});
    train_well(run, ranks, all);
  };
  // A checkpoint contains the best weights, so the folder is not needed.
  fs::remove_all(run.dir() + "/model-best");
  resume(1, "must");
  expect_same(run.dir());
  // The run is resumed into another folder, and from a checkpoint that precedes the best weights.
  resume(2, run.dir() + "/checkpoints/step-00000012", {"run.dir=" + run.folder.path() + "/other"});
  EXPECT_TRUE(content_of(run.folder.path() + "/other/model-best/model.safetensors") == best);
  resume(1, run.dir() + "/checkpoints/step-00000004");
  expect_same(run.dir());
}

// All checkpoints since the best evaluation have the same best weights, by links. RUN/model is a copy, into which users
// may write.
TEST(RunGoesOn, DamagedBestWeightsCostNoCheckpoint) {
  struct Row {
    int ranks;
    const char* every;  ///< steps between checkpoints besides those at the end of the epochs, after 6, 12 and 18 steps
    std::string from;
  };
  for (const auto& [ranks, every, from] : {Row{2, "0", "step-00000018"},
                                           // The one before the first evaluation lacks nothing.
                                           Row{2, "5", "step-00000005"}}) {
    SCOPED_TRACE(from);
    const auto set = sets({"run.keep_checkpoints=9", std::string("run.checkpoint_every=") + every, "run.export=best"});
    const SmallRun run(kLeaves, "epochs = 3\nglobal_batch = 8\n");
    train_well(run, ranks, set);
    const auto write_into = [&](const std::string& file) {
      std::fstream bytes(run.dir() + file, std::ios::in | std::ios::out | std::ios::binary);
      bytes.seekp(-9, std::ios::end);
      bytes << "x";
    };
    const auto train_further = [&] {
      const auto result = run.train(ranks, sets({"train.epochs=4", "run.resume=must"}, set));
      EXPECT_EQ(result.code, 0) << result.err;
      return result;
    };
    write_into("/model/model.safetensors");
    fs::copy(run.dir(), run.folder.path() + "/copy", fs::copy_options::recursive);
    EXPECT_EQ(train_further().err, "");
    const auto best = content_of(run.dir() + "/model-best/model.safetensors");
    fs::remove_all(run.dir());
    fs::rename(run.folder.path() + "/copy", run.dir());
    for (const auto& entry : fs::directory_iterator(run.dir() + "/checkpoints"))
      if (fs::exists(entry.path() / "best.safetensors"))
        write_into("/checkpoints/" + entry.path().filename().string() + "/best.safetensors");
    const auto damaged = train_further();
    EXPECT_NE(damaged.out.find("/checkpoints/" + from + ": epoch"), std::string::npos) << damaged.out;
    const bool lacks = from == "step-00000018";
    EXPECT_EQ(count_of(damaged.err, from + ": no checkpoint has intact best weights ("), lacks ? 1 : 0) << damaged.err;
    if (lacks)
      EXPECT_EQ(json_of(run.dir() + "/summary.json")["best"]["epoch"], 4);
    else
      EXPECT_TRUE(content_of(run.dir() + "/model-best/model.safetensors") == best);
  }
}

TEST(RunGoesOn, ResumingAFinishedRunChangesNothing) {
  const auto& run = made_once<TrainedRun>();
  std::map<std::string, std::string> before;
  for (const auto* file : {"summary.json", "metrics.jsonl", "config.toml", "model/model.safetensors"})
    before[file] = content_of(run.dir() + "/" + file);
  for (const int ranks : {1, 2}) {
    const auto again = run.train(ranks, {"--resume", "must"});
    EXPECT_EQ(again.code, 0) << again.err;
    EXPECT_EQ(lines_of(again.out).size(), 1U) << again.out;
    EXPECT_NE(again.out.find("nothing is left to do, all 6 steps are done; raise train.epochs"), std::string::npos)
        << again.out;
    for (const auto& [file, content] : before) EXPECT_TRUE(content_of(run.dir() + "/" + file) == content) << file;
  }
  // A run that ended between its last checkpoint and its results writes the results when it is resumed.
  fs::remove(run.dir() + "/summary.json");
  fs::remove_all(run.dir() + "/model");
  const auto rest = run.train(1);
  EXPECT_NE(rest.out.find("all 6 steps done; evaluation and export are left"), std::string::npos) << rest.out;
  EXPECT_TRUE(content_of(run.dir() + "/model/model.safetensors") == before["model/model.safetensors"]);
  EXPECT_EQ(metrics_of(run.dir(), "eval", "test").size(), 1U);
}

// The file contains every key that applied, with its value; with another optimizer some of them no longer apply.
TEST(RunGoesOn, TheResolvedFileCanBeChanged) {
  const auto& run = made_once<TrainedRun>();
  const auto again = run_process({TRIREME_COMMAND, "train", run.dir() + "/config.toml", "--set", "optimizer.name=sgd",
                                  "--set", "run.dir=" + run.folder.path() + "/other"});
  EXPECT_EQ(again.code, 0) << again.err;
}

TEST(RunGoesOn, DamagedCheckpointsPreventANewStart) {
  const SmallRun run;
  train_well(run, 1, sets({"run.checkpoint_every=2"}));
  std::vector<std::string> found;
  for (const auto& entry : fs::directory_iterator(run.dir() + "/checkpoints")) {
    fs::resize_file(entry.path() / "weights-00000-00.safetensors", 100);
    found.push_back((entry.path() / "weights-00000-00.safetensors").string());
  }
  ASSERT_EQ(found.size(), 2U);
  for (const int ranks : {1, 2}) {
    const auto result = run.train(ranks, {"--resume", "must"});
    for (const auto& file : found) expect_refusal(result, 7, file + " is truncated: 100 bytes");
  }
  EXPECT_FALSE(fs::exists(run.dir() + ".1"));
  EXPECT_TRUE(fs::exists(run.dir() + "/summary.json"));
}

}  // namespace
}  // namespace trireme::tests
