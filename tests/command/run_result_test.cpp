// Tests what a run prints and writes. Each reported score is that of the weights it is reported with.
#include <algorithm>
#include <cmath>

#include "tests/command/metrics.h"

namespace trireme::tests {
namespace {

// An epoch has 42 samples in batches of 8, of which the sixth has only 2.
TEST(Metrics, MatchAComputationByHand) {
  const SmallRun run(kLeaves, "epochs = 2\nglobal_batch = 8\n");
  train_well(
      run, 2,
      sets({"schedule.name=linear", "schedule.warmup_steps=3", "schedule.min_lr_factor=0.1", "optimizer.lr=2e-3"}));
  const auto steps = metrics_of(run.dir(), "step"), epochs = metrics_of(run.dir(), "eval", "validation");
  ASSERT_EQ(steps.size(), 12U);
  ASSERT_EQ(epochs.size(), 2U);
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const double step = static_cast<double>(i), way = (step - 3) / 9;
    EXPECT_EQ(steps[i]["step"], i + 1);
    EXPECT_EQ(steps[i]["samples"], i % 6 == 5 ? 2 : 8);
    EXPECT_NEAR(steps[i]["lr"], step < 3 ? 2e-3 * (step + 1) / 3 : 2e-3 * (0.1 + 0.9 * (1 - way)), 1e-15) << i;
  }
  for (std::size_t epoch = 0; epoch < 2; ++epoch) {
    double weighted = 0, plain = 0;
    for (std::size_t i = 6 * epoch; i < 6 * epoch + 6; ++i) {
      weighted += steps[i]["loss"].get<double>() * steps[i]["samples"].get<double>() / 42;
      plain += steps[i]["loss"].get<double>() / 6;
    }
    EXPECT_NEAR(epochs[epoch]["train_loss"], weighted, 1e-12);
    EXPECT_GT(std::abs(weighted - plain), 1e-6) << "the last batch must change the mean";
  }
  const auto summary = json_of(run.dir() + "/summary.json");
  EXPECT_EQ(summary["steps"], 12);
  EXPECT_EQ(summary["samples"], 84);
  EXPECT_EQ(summary["resumed_at_step"], 0);
  EXPECT_EQ(summary["skipped_steps"], 0);
  EXPECT_EQ(summary["final"]["epoch"], 2);
  EXPECT_EQ(summary["final"]["validation_loss"], epochs[1]["loss"]);
  EXPECT_EQ(summary["final"]["validation_accuracy"], epochs[1]["accuracy"]);
  std::int64_t of_ranks = 0;
  for (const auto& rank : summary["ranks"]) of_ranks += rank["samples"].get<std::int64_t>();
  EXPECT_EQ(of_ranks, 84);
  EXPECT_EQ(summary["ranks"].size(), 2U);
}

TEST(Metrics, OfAnEvaluationIgnoreLabelSmoothing) {
  std::vector<double> validation, train;
  for (const auto* smoothing : {"0", "0.3"}) {
    const SmallRun run;
    train_well(run, 1, sets({"optimizer.lr=0", std::string("train.label_smoothing=") + smoothing}));
    validation.push_back(json_of(run.dir() + "/summary.json")["final"]["validation_loss"]);
    train.push_back(metrics_of(run.dir(), "eval", "validation").back()["train_loss"]);
  }
  EXPECT_EQ(validation[0], validation[1]);
  EXPECT_NE(train[0], train[1]);
}

TEST(RunResult, TheFirstOfEqualEpochsIsTheBest) {
  const SmallRun run(kLeaves, "epochs = 3\nglobal_batch = 8\n");
  const auto result = run.train(1, sets({"optimizer.lr=0"}));
  const auto summary = json_of(run.dir() + "/summary.json");
  EXPECT_EQ(summary["best"]["epoch"], 1);
  EXPECT_EQ(summary["final"]["epoch"], 3);
  EXPECT_NE(result.out.find("\nlast      epoch 3: validation accuracy "), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("\nbest      epoch 1: validation accuracy "), std::string::npos) << result.out;
}

TEST(RunResult, ReportsOneEpochOfOneStepInSingular) {
  const SmallRun run;
  const auto result = run.train(1, sets({"train.max_steps=1", "optimizer.freeze=[\"encoder\", \"cls_token\"]"}));
  EXPECT_NE(result.out.find("1 epoch of 42 examples"), std::string::npos) << result.out;
  EXPECT_NE(result.out.find(", 1 step, "), std::string::npos) << result.out;
  // A layer has 4 x (16 x 16 + 16) + (32 x 16 + 32) + (16 x 32 + 16) + 4 x 16 parameters, the class token 16.
  EXPECT_NE(result.out.find(" trained, 2,240 frozen\n"), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("\nbest      epoch 1, the last: validation accuracy "), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("weights in " + run.dir() + "/model and " + run.dir() + "/model-best\n"), std::string::npos)
      << result.out;
  EXPECT_EQ(content_of(run.dir() + "/model/model.safetensors"),
            content_of(run.dir() + "/model-best/model.safetensors"));
}

/// The lines of an evaluation, by split: "loss 1.2345   accuracy 33.3 %".
std::map<std::string, std::string> evaluated(const std::string& weights, int ranks) {
  const auto result =  // without the process that --ranks checks the command in first
      run_process({TRIREME_COMMAND, "launch", "-n", std::to_string(ranks), TRIREME_COMMAND, "eval", weights});
  EXPECT_EQ(result.code, 0) << result.err;
  std::map<std::string, std::string> out;
  for (const auto& line : lines_of(result.out)) {
    const auto begin = line.find("loss "), end = line.find("   F1 ");
    if (begin != std::string::npos && end != std::string::npos)
      out[line.substr(0, line.find(' '))] = line.substr(begin, end - begin);
  }
  return out;
}

std::string reported(const nlohmann::json& of, const std::string& split) {
  char text[80];
  std::snprintf(text, sizeof text, "loss %.4f   accuracy %.1f %%", of[split + "_loss"].get<double>(),
                100 * of[split + "_accuracy"].get<double>());
  return text;
}

/// One of the two last lines on the screen, without its label.
std::string closing(const nlohmann::json& of) {
  char text[80];
  std::snprintf(text, sizeof text, "epoch %d: validation accuracy %.1f %%, test %.1f %%;", of["epoch"].get<int>(),
                100 * of["validation_accuracy"].get<double>(), 100 * of["test_accuracy"].get<double>());
  return text;
}

// RUN/model obeys the options of an export, from the model's slices and from RUN/model-best, which does not.
TEST(RunResult, ExportsSeveralFilesInAnotherDtype) {
  for (const std::string which : {"last", "best"}) {
    const SmallRun run(kLeaves, "epochs = 2\nglobal_batch = 8\n");
    train_well(run, 2,
               sets({"optimizer.lr=0", "model.intermediate_size=20000", "run.export=" + which, "run.export_shard_mb=1",
                     "run.export_dtype=bf16"}));
    const auto model = run.dir() + "/model", best = run.dir() + "/model-best";
    EXPECT_EQ(json_of(model + "/config.json")["dtype"], "bfloat16");
    EXPECT_EQ(json_of(best + "/config.json")["dtype"], "float32");
    EXPECT_FALSE(fs::exists(model + "/model.safetensors"));
    EXPECT_TRUE(fs::exists(best + "/model.safetensors"));
    const auto weights = json_of(model + "/model.safetensors.index.json")["weight_map"];
    EXPECT_NE(weights["vit.encoder.layer.0.intermediate.dense.weight"],
              weights["vit.encoder.layer.0.output.dense.weight"]);
    for (const auto& [name, file] : weights.items()) EXPECT_TRUE(fs::exists(model + "/" + file.get<std::string>()));
    EXPECT_FALSE(evaluated(model, 1).empty());
  }
}

// In every layout the weights of the two folders give the scores that the summary reports for them.
TEST(RunResult, ScoresOfLastAndBestMatchTheirWeights) {
  const std::vector<std::pair<int, Arguments>> layouts{
      {1, {}},
      {2, sets({"parallel.plugin=low_level_zero", "plugin.low_level_zero.stage=2", "train.precision=bf16"})},
      {2, sets({"parallel.plugin=gemini"})},
      {2, sets({"parallel.tp=2"})},
      {4, sets({"parallel.tp=2", "parallel.pp=2", "train.micro_batch=2"})}};
  for (const auto& [ranks, arguments] : layouts) {
    SCOPED_TRACE(testing::PrintToString(arguments));
    const SmallRun run(kLeaves, "epochs = 3\nglobal_batch = 8\n");
    auto all = kSpoilt;
    all.insert(all.end(), arguments.begin(), arguments.end());
    const auto out = train_well(run, ranks, all);
    const auto summary = json_of(run.dir() + "/summary.json");
    EXPECT_LT(summary["best"]["epoch"], 3);
    EXPECT_NE(summary["best"]["test_loss"], summary["final"]["test_loss"]);
    for (const auto& [folder, part] : {std::pair{"/model-best", "best"}, {"/model", "final"}}) {
      auto found = evaluated(run.dir() + folder, ranks);
      for (const auto* split : {"validation", "test"})
        EXPECT_EQ(found[split], reported(summary[part], split)) << folder;
      EXPECT_NE(out.find(closing(summary[part])), std::string::npos) << out;
    }
    const auto tests = metrics_of(run.dir(), "eval", "test");
    ASSERT_EQ(tests.size(), 2U);
    EXPECT_EQ(tests[0]["weights"], "last");
    EXPECT_EQ(tests[1]["weights"], "best");
    EXPECT_EQ(tests[1]["epoch"], summary["best"]["epoch"]);
    const auto evals = metrics_of(run.dir(), "eval", "validation");
    for (const auto& test : tests) EXPECT_EQ(test["step"], evals.at(test["epoch"].get<std::size_t>() - 1)["step"]);
  }
}

/// The lines of a rank's log, without their timestamps.
std::vector<std::string> log_of(const SmallRun& run, int rank) {
  std::vector<std::string> lines;
  for (const auto& line : lines_of(content_of(run.dir() + "/logs/rank-" + std::to_string(rank) + ".log")))
    lines.push_back(line.substr(std::string("2026-01-31 12:00:00.000 ").size()));
  return lines;
}

// Both ranks read the unreadable sample, in different epochs.
TEST(RunResult, AnUnreadableSampleIsCountedOnceAndByRank) {
  const TemporaryFolder folder;
  const auto leaves = folder.path() + "/leaves";
  ASSERT_EQ(run_process({TRIREME_COMMAND, "data", "leaves", "--out", leaves, "--images", "60", "--size", "16"}).code,
            0);
  const auto victim = fs::directory_iterator(leaves + "/train/healthy")->path();
  std::ofstream(victim, std::ios::binary) << "this is no image";
  const SmallRun run("[data]\nname = \"image_folder\"\nimage_size = 16\npath = \"" + leaves + "\"\n",
                     "epochs = 8\nglobal_batch = 8\n");
  const auto result = run.train(2, sets({"data.on_bad_sample=skip", "run.rank_logs=true"}));
  EXPECT_EQ(result.code, 0) << result.err;
  const auto summary = json_of(run.dir() + "/summary.json");
  for (int rank = 0; rank < 2; ++rank) {
    const auto warning = "warning: rank " + std::to_string(rank) + ": a sample is skipped: " + victim.string();
    EXPECT_NE(result.err.find(warning), std::string::npos) << result.err;
    const auto log = log_of(run, rank);
    EXPECT_EQ(std::count_if(log.begin(), log.end(), [&](const auto& line) { return line.starts_with("warning: "); }),
              1);
    EXPECT_EQ(std::count_if(log.begin(), log.end(), [&](const auto& line) { return line.starts_with(warning); }), 1);
    EXPECT_EQ(std::count_if(log.begin(), log.end(), [](const auto& line) { return line.starts_with("step "); }),
              summary["steps"]);
    EXPECT_EQ(summary["ranks"][rank]["skipped_samples"], (nlohmann::json{{"train", 1}}));
  }
  EXPECT_EQ(summary["skipped_samples"], (nlohmann::json{{"train", 1}}));
  EXPECT_NE(result.out.find(", 1 unreadable in train skipped\nskipped   rank 0: 1 in train; rank 1: 1 in train\n"),
            std::string::npos)
      << result.out;
}

// Each rank logs its steps and evaluations, and the error that ends it. A new run removes the old logs.
TEST(RunResult, EachRankHasALogOnRequest) {
  const SmallRun run(kLeaves, "epochs = 1\nglobal_batch = 8\n");
  train_well(run, 2, sets({"run.rank_logs=true"}));
  for (int rank = 0; rank < 2; ++rank) {
    const auto log = log_of(run, rank);
    ASSERT_EQ(log.size(), 8U);  // 6 steps, the validation and the test
    EXPECT_TRUE(log[0].starts_with("step 1: ") && log[0].find("; 4 samples here; workers read ") != std::string::npos)
        << log[0];
    EXPECT_TRUE(log[7].starts_with("evaluation of the test split: ")) << log[7];
  }
  const auto failed = run.train(2, sets({"run.rank_logs=true", "optimizer.lr=1e30", "train.max_norm=0"}));
  EXPECT_EQ(failed.code, 6) << failed.err;
  for (int rank = 0; rank < 2; ++rank) EXPECT_NE(log_of(run, rank).back().find("error: step "), std::string::npos);
  train_well(run, 2, {});
  EXPECT_FALSE(fs::exists(run.dir() + "/logs"));
}

// The model's FLOPs follow from a formula, and the rates from these FLOPs and the measured times.
TEST(RunResult, ReportsTheModelsFlopsAndTheMfu) {
  const SmallRun run(kLeaves, "epochs = 1\nglobal_batch = 8\nrecompute = true\n");
  const auto out = train_well(run, 2, sets({"run.peak_tflops=0.5"}));
  const double n = 5, h = 16, m = 32, head = 2 * h * 3;  // 4 patches and the class token, the only query token
  const double sample = 2 * 4 * h * 3 * 64 + 2 * (2 * n * h * h + 2 * h * h + 2 * h * m) + 4 * n * h + head;
  for (const auto& step : metrics_of(run.dir(), "step")) {
    const double rate = 3 * sample * step["samples_per_s"].get<double>();
    EXPECT_NEAR(step["flops_per_s"].get<double>(), rate, 1e-9 * rate);
    EXPECT_NEAR(step["mfu"].get<double>(), rate / 1e12, 1e-9 * rate / 1e12) << "2 ranks of 0.5 TFLOP/s";
  }
  const auto summary = json_of(run.dir() + "/summary.json");
  EXPECT_EQ(summary["peak_flops_per_s"], 1e12);
  EXPECT_EQ(summary["mfu"].get<double>(), summary["flops_per_s"].get<double>() / 1e12);
  EXPECT_NE(out.find("FLOP/s (MFU "), std::string::npos) << out;
}

TEST(RunResult, SaysWhatAStepTakesItsTimeFor) {
  const SmallRun run(kLeaves, "epochs = 2\nglobal_batch = 8\n");
  train_well(run, 2);
  double steps = 0, seconds = 0, parts = 0;
  for (const auto& step : metrics_of(run.dir(), "step"))
    if (step["step"] > 2) {
      ++steps;
      seconds += step["samples"].get<double>() / step["samples_per_s"].get<double>();
    }
  const auto summary = json_of(run.dir() + "/summary.json");
  for (const auto& [part, mean] : summary.at("split").items()) {
    EXPECT_GT(mean, part == "data" ? -1 : 0) << part;
    parts += mean.get<double>();
  }
  EXPECT_NEAR(parts, seconds / steps, 1e-9);
}

// The tutorial's file is run with a smaller model, smaller images and two steps.
TEST(RunResult, TheTutorialsFileRuns) {
  const TemporaryFolder folder;
  const auto leaves = folder.path() + "/leaves", dir = folder.path() + "/run";
  ASSERT_EQ(run_process({TRIREME_COMMAND, "data", "leaves", "--out", leaves, "--images", "60", "--size", "32"}).code,
            0);
  auto arguments =
      sets({"run.dir=" + dir, "run.device=cpu", "data.path=" + leaves, "data.image_size=32",
            "model.weights=", "model.hidden_size=24", "model.num_layers=4", "model.num_heads=2",
            "model.intermediate_size=48", "train.max_steps=2"},
           {TRIREME_COMMAND, "train", TRIREME_SOURCE_DIR "/configs/beans_vit_tutorial.toml", "--ranks", "4"});
  const auto result = run_process(arguments);
  EXPECT_EQ(result.code, 0) << result.err;
  for (const auto* says : {"4 = dp 1 x pp 2 x tp 2", "global batch 32 (32 x 1 per rank)", "fp16"})
    EXPECT_NE(result.out.find(says), std::string::npos) << says << "\n" << result.out;
  EXPECT_EQ(json_of(dir + "/summary.json")["steps"], 2);
  EXPECT_EQ(json_of(dir + "/summary.json")["skipped_steps"], 0);
}

}  // namespace
}  // namespace trireme::tests
