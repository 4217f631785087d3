// Tasks as their keys select them: losses, metrics, and which weights are the best and are exported.
#include <cmath>
#include <cstdint>
#include <cstring>

#include "tests/command/metrics.h"

namespace trireme::tests {
namespace {

/// A safetensors file of `n` images of 8 x 8 pixels and their labels. `write_label(i)` returns the bytes of one label.
/// With `mask` the file also has an attention_mask of five tokens.
template <class Label>
std::string tensors_file(std::size_t n, const std::string& dtype, const std::string& shape, const Label& write_label,
                         bool mask = false) {
  constexpr std::size_t kPixels = 3 * 8 * 8;
  std::string pixels, labels;
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t p = 0; p < kPixels; ++p) {
      const auto value = static_cast<float>(std::sin(0.7 * static_cast<double>(i * 31 + p * (1 + i % 3))));
      pixels.append(reinterpret_cast<const char*>(&value), sizeof value);
    }
    labels += write_label(i);
  }
  const auto entry = [](const std::string& name, const std::string& type, const std::string& of, std::size_t begin,
                        std::size_t bytes) {
    return "\"" + name + "\":{\"dtype\":\"" + type + "\",\"shape\":[" + of + "],\"data_offsets\":[" +
           std::to_string(begin) + "," + std::to_string(begin + bytes) + "]}";
  };
  auto header = "{" + entry("pixel_values", "F32", std::to_string(n) + ",3,8,8", 0, pixels.size()) + "," +
                entry("labels", dtype, std::to_string(n) + shape, pixels.size(), labels.size());
  if (mask) {
    header += "," + entry("attention_mask", "U8", std::to_string(n) + ",5", pixels.size() + labels.size(), n * 5);
    labels += std::string(n * 5, '\1');
  }
  header += "}";
  const auto length = static_cast<std::uint64_t>(header.size());
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + header + pixels + labels;
}

template <class T>
std::string bytes_of(T value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

/// A small run on safetensors files in its folder.
struct RunOnTensors : SmallRun {
  template <class Label>
  RunOnTensors(const std::string& dtype, const std::string& shape, const Label& label)
      : SmallRun("[data]\nname = \"tensors\"\npath = \"data\"\n",
                 "epochs = 2\nglobal_batch = 6\nprecision = \"fp64\"\n") {
    fs::create_directories(folder.path() + "/data");
    for (const auto* split : {"train", "validation"})
      folder.write(std::string("data/") + split + ".safetensors", tensors_file(19, dtype, shape, label));
    rewrite_path();
  }

 private:
  void rewrite_path() {
    auto text = content_of(config);
    text.replace(text.find("path = \"data\""), 13, "path = \"" + folder.path() + "/data\"");
    folder.write("run.toml", text);
  }
};

TEST(RunTasks, Regression) {
  const RunOnTensors run("F32", "", [](std::size_t i) { return bytes_of(0.1F * static_cast<float>(i % 3)); });
  const auto refused = run.train(1, {"--set", "train.task=classification"});
  EXPECT_EQ(refused.code, 2) << refused.err;
  EXPECT_NE(refused.err.find("choose another train.task"), std::string::npos) << refused.err;
  const auto scores = same_on_two_ranks(run, 8);  // labels with fractions are for regression
  EXPECT_GT(scores["mean_absolute_error"], 0.0);
  EXPECT_FALSE(scores.contains("accuracy"));
  EXPECT_EQ(json_of(run.dir() + "/model/config.json")["problem_type"], "regression");
  EXPECT_EQ(json_of(run.dir() + "/summary.json")["final"]["validation_mean_absolute_error"],
            scores["mean_absolute_error"]);
  const auto evaluated = run_process({TRIREME_COMMAND, "eval", run.dir()});
  EXPECT_NE(evaluated.out.find("   mean absolute error "), std::string::npos) << evaluated.out << evaluated.err;
  for (const auto* ranks : {"1", "2"})
    expect_only_refusal(run_process({TRIREME_COMMAND, "eval", run.dir(), "--report", "--ranks", ranks}), 2,
                        "--report: the task \"regression\" has no classes to report on");
}

TEST(RunTasks, MultiLabel) {
  const RunOnTensors run("U8", ",4", [](std::size_t i) {
    return std::string({char(i % 2), char(i % 3 == 0), 1, char(i % 5 == 0)});
  });
  const auto scores = same_on_two_ranks(run, 8, {"--set", "train.task=multi_label"});
  EXPECT_GT(scores["f1"], 0.0);
  EXPECT_EQ(json_of(run.dir() + "/model/config.json")["problem_type"], "multi_label_classification");
}

TEST(RunTasks, IgnoredLabels) {
  const RunOnTensors run("I64", "",
                         [](std::size_t i) { return bytes_of<std::int64_t>(i % 4 == 1 || i < 5 ? -100 : i % 3); });
  const auto scores = same_on_two_ranks(run, 8, {"--set", "train.label_smoothing=0.1"});
  EXPECT_EQ(scores["samples"], 19);
  EXPECT_FALSE(scores.contains("top_k")) << "of 3 classes";
  const double hits = scores["accuracy"].get<double>() * 10;  // 10 labels are not ignored
  EXPECT_NEAR(hits, std::round(hits), 1e-9);
}

TEST(RunTasks, AMaskThatTheModelWouldIgnoreIsRefused) {
  const auto label = [](std::size_t i) { return bytes_of<std::int64_t>(i % 3); };
  const RunOnTensors run("I64", "", label);
  for (const auto* split : {"train", "validation"})
    run.folder.write(std::string("data/") + split + ".safetensors", tensors_file(19, "I64", "", label, true));
  const auto refused = run.train(1);
  EXPECT_EQ(refused.code, 2) << refused.err << refused.out;
  EXPECT_NE(refused.err.find("the data have \"attention_mask\", which the attention layer "
                             "\"vit.encoder.layer.0.attention.attention\" reads"),
            std::string::npos)
      << refused.err;
}

TEST(RunTasks, TheBestWeightsByAMetricCanBeExported) {
  for (const std::string best : {"validation.accuracy", "validation.loss"}) {
    const SmallRun run(kLeaves, "epochs = 4\nglobal_batch = 8\n");
    const auto result =
        run.train(2, {"--set", "train.best=" + best, "--set", "run.export=best", "--set", "schedule.name=multi_step",
                      "--set", "schedule.milestones=[15]", "--set", "schedule.gamma=500"});
    ASSERT_EQ(result.code, 0) << result.err;
    const auto epochs = metrics_of(run.dir(), "eval", "validation");
    const auto key = best.substr(best.find('.') + 1);
    std::size_t expected = 0;
    for (std::size_t i = 1; i < epochs.size(); ++i) {
      const double now = epochs[i][key], so_far = epochs[expected][key];
      if (key == "loss" ? now < so_far : now > so_far) expected = i;
    }
    const auto summary = json_of(run.dir() + "/summary.json");
    EXPECT_EQ(summary["best"]["epoch"], expected + 1) << best;
    EXPECT_LT(expected, 3U) << "the last epoch must be worse";
    EXPECT_EQ(content_of(run.dir() + "/model/model.safetensors"),
              content_of(run.dir() + "/model-best/model.safetensors"));
    EXPECT_NE(result.out.find("; weights in " + run.dir() + "/model and " + run.dir() + "/model-best\n"),
              std::string::npos)
        << result.out;
  }
  const SmallRun run;
  const auto unknown = run.train(1, {"--set", "train.best=validation.acuracy"});
  EXPECT_NE(unknown.err.find("\"validation.acuracy\" is no metric of this task (known: validation.loss, "
                             "validation.accuracy, validation.f1); did you mean "
                             "\"validation.accuracy\"?"),
            std::string::npos)
      << unknown.err;
  const auto task = run.train(1, {"--set", "train.task=clasification"});
  EXPECT_NE(task.err.find("did you mean \"classification\"?"), std::string::npos) << task.err;
}

}  // namespace
}  // namespace trireme::tests
