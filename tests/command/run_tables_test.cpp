// Trainings on tables of images and of texts as users run them: the table says what is learned.
#include "tests/command/table_run.h"

namespace trireme::tests {
namespace {

/// What an evaluation prints, but for its time.
std::string evaluated(const SmallRun& run, const std::vector<std::string>& assignments) {
  const auto result = run_process(sets(assignments, {TRIREME_COMMAND, "eval", run.dir()}));
  EXPECT_EQ(result.code, 0) << result.err;
  return result.out.substr(0, result.out.rfind("   "));
}

TEST(RunTables, LearnLabelsAndNumbers) {
  for (const bool images : {true, false}) {
    SCOPED_TRACE(images ? "images" : "texts");
    const RunOnTable by_columns(images, "labels = [\"rust\", \"spots\"]\n");
    std::string out;
    const auto scores = same_on_two_ranks(by_columns, 8, {}, &out);
    ASSERT_TRUE(scores.contains("f1")) << scores;
    EXPECT_NE(out.find("2 classes: rust, spots"), std::string::npos) << out;
    const auto model = json_of(by_columns.dir() + "/model/config.json");
    EXPECT_EQ(model["problem_type"], "multi_label_classification");
    EXPECT_EQ(model["id2label"], nlohmann::json::parse(R"({"0": "rust", "1": "spots"})"));
    EXPECT_EQ(evaluated(by_columns, {"data.labels=[\"spots\",\"rust\"]"}), evaluated(by_columns, {}))
        << "labels are numbered as in the weights";
    const RunOnTable by_names(images, "label = \"tags\"\nlabel_separator = \" \"\n");
    train_well(by_names, 1);
    EXPECT_NEAR(metrics_of(by_names.dir(), "eval", "validation").back()["loss"], scores["loss"], 1e-9);
    const RunOnTable run(images, "numbers = [\"age\"]\n");
    EXPECT_TRUE(same_on_two_ranks(run, 8).contains("mean_absolute_error"));
    EXPECT_EQ(json_of(run.dir() + "/model/config.json")["problem_type"], "regression");
    expect_only_refusal(run.train(1, {"--set", "train.task=multi_label", "--fresh"}), 2,
                        "\"multi_label\" needs 0 or 1 for each of C labels [C], but the data have labels int64 [] for "
                        "each sample; choose another train.task");
  }
}

// Two sources and even classes give the same numbers on one rank and on two, and a resumed run goes on with them.
TEST(RunTables, AreMixedAndBalanced) {
  const RunOnTable run(true, "balance_classes = 1\n");
  const auto whole = content_of(run.config);
  const auto mix =
      "[[data.mix]]\ntrain = \"" + run.table() + "\"\nimage_size = 16\nvalidation_share = 0.3\nflip = true\n";
  run.folder.write("run.toml", whole + mix);
  std::string out;
  const auto scores = same_on_two_ranks(run, 14, {}, &out);
  ASSERT_TRUE(scores.contains("accuracy")) << scores;
  EXPECT_NE(out.find(run.table() + " + " + run.table() + ": "), std::string::npos) << out;
  const auto losses = metrics_of(run.dir(), "step");
  EXPECT_EQ(run.train(2, {"--set", "train.epochs=1", "--fresh"}).code, 0);
  EXPECT_EQ(run.train(1).code, 0);
  EXPECT_NEAR(metrics_of(run.dir(), "step").back()["loss"], losses.back()["loss"], 1e-9);
  const auto printed = evaluated(run, {});
  ASSERT_NE(printed.find("loss "), std::string::npos) << printed;
  EXPECT_NEAR(std::stod(printed.substr(printed.find("loss ") + 5)),
              metrics_of(run.dir(), "eval", "validation").back()["loss"], 1e-4)
      << "the classes of an evaluation are not balanced";
  // Another augmentation of one source is another training.
  run.folder.write("run.toml", whole + mix + "random_resized_crop = true\n");
  expect_only_refusal(run.train(1, {"--set", "train.epochs=3", "--resume", run.dir()}), 7,
                      "data.mix[1].random_resized_crop = true (it was false)");
  struct Case {
    std::string more, assignment, message;
  };
  for (const auto& [more, assignment, message] : std::vector<Case>{
           {mix, "data.shard_data=true",
            "--set data.shard_data=true: needs samples with numbers of their own, but [[data.mix]] draws them anew in "
            "each epoch; remove one of the two"},
           {"", "train.shuffle=false",
            "--set train.shuffle=false: is false, but data.balance_classes draws the samples at random; remove one of "
            "the two"},
           {mix + "weight = 3\nimagse = 3\n", "train.epochs=1",
            ": no key \"imagse\" in [data]; did you mean \"image\"?"},
           {"", "data.weight=3", "--set data.weight=3: has no effect without [[data.mix]]; remove it"},
           {mix, "data.numbers=[\"age\"]", "data.balance_classes"},
           {"", "train.balance_classes=1",
            "train.balance_classes=1: needs one source of data whose samples are all in each epoch; with [[data.mix]] "
            "give "
            "class_weights, and with data.balance_classes remove one of the two"},
           {mix + "workers = 2\n", "train.epochs=1", "workers = 2: is said in [data], for all sources; remove it"},
           {"[[data.mixed]]\n", "train.epochs=1", "no section [[data.mixed]]; further data are [[data.mix]]"}}) {
    run.folder.write("run.toml", whole + more);
    expect_only_refusal(run.train(1, {"--set", assignment, "--fresh"}), 2, message);
  }
}

TEST(RunTables, OfImagesAreReadAsAFolder) {
  const RunOnTable run(true, "validation_share = 0.3\n");
  auto text = content_of(run.config);
  const auto at = text.find("validation = ");
  run.folder.write("run.toml", text.erase(at, text.find('\n', at) + 1 - at));
  const auto scores = same_on_two_ranks(run, 6, {"--set", "data.shard_data=true"});
  ASSERT_TRUE(scores.contains("accuracy")) << scores;
  const auto image = run.leaves() + "/test/rust/";
  const auto predicted = run_process({TRIREME_COMMAND, "predict", run.dir(), image});
  EXPECT_EQ(predicted.code, 0) << predicted.err;
  EXPECT_EQ(predicted.out.find(image), 0U) << predicted.out;
  expect_only_refusal(run.train(1, {"--set", "data.labels=[\"rust\"]", "--set", "data.label=label"}), 2,
                      "--set data.label=label: conflicts with labels, which names other columns to learn");
}

}  // namespace
}  // namespace trireme::tests
