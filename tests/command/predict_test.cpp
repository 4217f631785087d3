// `trireme predict` and `trireme eval --report`: both count the same, in every layout, and what they refuse.
#include <algorithm>
#include <cmath>
#include <map>
#include <regex>

#include "tests/command/metrics.h"

namespace trireme::tests {
namespace {

using PredictArguments = std::vector<std::string>;

ProcessResult predict(PredictArguments arguments) {
  arguments.insert(arguments.begin(), {TRIREME_COMMAND, "predict"});
  return run_process(arguments);
}

/// A short run on leaves in a folder, with which some classes are confused.
struct RunOnLeaves : SmallRun {
  RunOnLeaves() : SmallRun("", "epochs = 3\nglobal_batch = 8\n[optimizer]\nlr = 1e-2\n") {
    EXPECT_EQ(run_process({TRIREME_COMMAND, "data", "leaves", "--out", data(), "--images", "90", "--size", "16"}).code,
              0);
    folder.write("run.toml", "[data]\nname = \"image_folder\"\nimage_size = 16\nmean = [0.4, 0.5, 0.6]\npath = \"" +
                                 data() + "\"\n" + content_of(config));
    const auto result = train(1);
    EXPECT_EQ(result.code, 0) << result.err << result.out;
  }
  [[nodiscard]] std::string data() const { return folder.path() + "/leaves"; }
  /// What `eval --report` writes for the validation split.
  [[nodiscard]] nlohmann::json report(const PredictArguments& more) const {
    const auto file = folder.path() + "/report.json";
    fs::remove(file);
    PredictArguments arguments{TRIREME_COMMAND, "eval", dir(), "--report", file};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const auto result = run_process(arguments);
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_NE(result.out.find("\nclass          samples  accuracy  precision"), std::string::npos) << result.out;
    EXPECT_NE(result.out.find("\nactual, by predicted class  0  1  2\n0 angular_spots"), std::string::npos)
        << result.out;
    const auto all = json_of(file);
    EXPECT_TRUE(all.contains("test"));
    return all.at("validation");
  }
};

/// The fields of a line of CSV without quotes.
std::vector<std::string> fields_of(const std::string& line) {
  std::vector<std::string> out;
  std::istringstream stream(line);
  for (std::string field; std::getline(stream, field, ',');) out.push_back(field);
  return out;
}

/// The same images and classes, and probabilities that differ by rounding: products of another size sum in another
/// order.
void expect_same(const std::string& csv, const std::string& expected) {
  static const std::regex probability(R"(\b[01]\.[0-9]{6}\b)");
  EXPECT_EQ(std::regex_replace(csv, probability, "p"), std::regex_replace(expected, probability, "p"));
  const auto values = [](const std::string& text) {
    std::vector<double> out;
    for (std::sregex_iterator at(text.begin(), text.end(), probability), end; at != end; ++at)
      out.push_back(std::stod(at->str()));
    return out;
  };
  const auto now = values(csv), before = values(expected);
  ASSERT_EQ(now.size(), before.size());
  EXPECT_FALSE(now.empty());
  for (std::size_t i = 0; i < now.size(); ++i) EXPECT_NEAR(now[i], before[i], 2e-6) << csv;
}

TEST(Predict, AgreesWithTheReportOfAnEvaluationInEveryLayout) {
  const auto& run = made_once<RunOnLeaves>();
  const auto one = run.report({});
  for (const PredictArguments& layout : {PredictArguments{"--ranks", "2"},
                                         {"--ranks", "2", "--set", "parallel.tp=2"},
                                         {"--ranks", "2", "--set", "parallel.pp=2"}}) {
    const auto two = run.report(layout);
    for (const auto* key : {"samples", "classes", "matrix", "by_class"}) EXPECT_EQ(two.at(key), one.at(key)) << key;
    EXPECT_NEAR(two.at("loss"), one.at("loss"), 1e-5);
  }
  // The prediction does without the data set.
  const auto photos = run.folder.path() + "/photos";
  fs::rename(run.data() + "/validation", photos);
  fs::remove_all(run.data());
  const auto result = predict({run.dir(), photos, "--csv"});
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  const auto lines = lines_of(result.out);
  ASSERT_EQ(lines.size(), one.at("samples").get<std::size_t>() + 1);
  EXPECT_EQ(lines.front(), "image,class,probability");
  EXPECT_TRUE(std::is_sorted(lines.begin() + 1, lines.end()));
  std::map<std::string, std::map<std::string, int>> counts;
  for (std::size_t i = 1; i < lines.size(); ++i) {
    const auto fields = fields_of(lines[i]);
    ASSERT_EQ(fields.size(), 3U) << lines[i];
    ++counts[fs::path(fields[0]).parent_path().filename().string()][fields[1]];
    EXPECT_GE(std::stod(fields[2]), 0.333) << "the most probable of three classes";
  }
  const auto classes = one.at("classes").get<std::vector<std::string>>();
  ASSERT_EQ(classes, (std::vector<std::string>{"angular_spots", "healthy", "rust"}));
  double right = 0, f1 = 0;
  for (std::size_t i = 0; i < classes.size(); ++i) {
    double samples = 0, predicted = 0;
    for (std::size_t j = 0; j < classes.size(); ++j) {
      EXPECT_EQ(one["matrix"][i][j], counts[classes[i]][classes[j]]) << classes[i] << " as " << classes[j];
      samples += counts[classes[i]][classes[j]];
      predicted += counts[classes[j]][classes[i]];
    }
    const double own = counts[classes[i]][classes[i]];
    const auto& row = one["by_class"][i];
    EXPECT_EQ(row["class"], classes[i]);
    EXPECT_EQ(row["samples"], samples);
    EXPECT_NEAR(row["accuracy"], own / samples, 1e-12);
    EXPECT_EQ(row["precision"].is_null(), predicted == 0);
    EXPECT_NEAR(row["f1"], 2 * own / (samples + predicted), 1e-12);
    right += own;
    f1 += 2 * own / (samples + predicted) / 3;
  }
  EXPECT_NEAR(one["accuracy"], right / one["samples"].get<double>(), 1e-12);
  EXPECT_NEAR(one["f1"], f1, 1e-12);
  // Batches, checkpoints and exported weights with the user's file give the same.
  expect_same(predict({run.dir(), photos, "--csv", "--batch", "2"}).out, result.out);
  EXPECT_EQ(predict({run.dir() + "/checkpoints/step-00000024", photos, "--csv"}).out, result.out);
  EXPECT_EQ(predict({run.dir() + "/model/model.safetensors", photos, "--csv"}).out, result.out);
  const auto mere = run.folder.path() + "/mere";
  fs::copy(run.dir() + "/model", mere);
  EXPECT_EQ(predict({mere, photos, "--csv", "--config", run.config}).out, result.out);
  // A file of weights alone needs the user's file and the names of the classes.
  const auto file = mere + "/model.safetensors";
  const auto labels = json_of(mere + "/config.json").at("id2label");
  fs::remove(mere + "/config.json");
  expect_only_refusal(predict({file, photos}), 2,
                      file +
                          ": a file that is neither in a run's model folder nor in a checkpoint, so it has no "
                          "config.toml; name a run folder or a checkpoint, or the weights and the TOML file "
                          "(--config FILE)");
  expect_only_refusal(predict({file, photos, "--config", run.config}), 7,
                      file + ": nothing names the classes of these weights, so nothing can be predicted; write " +
                          mere +
                          "/config.json with the names of all classes by their numbers: {\"id2label\": {\"0\": ");
  std::ofstream(mere + "/config.json") << nlohmann::json{{"id2label", labels}};
  EXPECT_EQ(predict({file, photos, "--csv", "--config", run.config}).out, result.out);
}

TEST(Predict, PrintsWhatItCanRead) {
  const auto& run = made_once<RunOnLeaves>();
  const auto photos = run.folder.path() + "/photos";
  fs::create_directories(photos + "/.hidden");
  std::vector<std::string> images;
  for (const auto& entry : fs::directory_iterator(run.data() + "/validation/rust")) images.push_back(entry.path());
  ASSERT_GE(images.size(), 2U);
  fs::copy(images[0], photos + "/b, \"c\".png");
  fs::copy(images[1], photos + "/a.PNG");
  fs::copy(images[0], photos + "/.hidden/d.png");
  std::ofstream(photos + "/c\x1B[2J.jpg") << "no image";
  std::ofstream(photos + "/notes.txt") << "no image";
  // Three classes exist, so --top 9 gives three.
  const auto csv = predict({run.dir(), photos, "/nowhere/e.png", "--csv", "--top", "9"});
  expect_refusal(csv, 3, "2 of 4 images could not be read; the lines above name them");
  expect_same(predict({run.dir(), photos, "/nowhere/e.png", "--csv", "--top", "9", "--batch", "1"}).out, csv.out);
  for (const auto& path : {photos + "/c?[2J.jpg: ", std::string("/nowhere/e.png: ")})
    EXPECT_NE(csv.err.find("warning: a sample is skipped: " + path), std::string::npos) << csv.err;
  const auto lines = lines_of(csv.out);
  ASSERT_EQ(lines.size(), 3U) << csv.out;
  EXPECT_EQ(lines[0], "image,class,probability,class_2,probability_2,class_3,probability_3");
  EXPECT_TRUE(lines[2].starts_with("\"" + photos + "/b, \"\"c\"\".png\",")) << lines[2];
  const auto fields = fields_of(lines[1]);
  ASSERT_EQ(fields.size(), 7U) << lines[1];
  EXPECT_EQ(fields[0], photos + "/a.PNG");
  const double first = std::stod(fields[2]), second = std::stod(fields[4]), third = std::stod(fields[6]);
  EXPECT_TRUE(first >= second && second >= third) << lines[1];
  EXPECT_NEAR(first + second + third, 1, 1e-5);

  const auto plain = predict({run.dir(), photos + "/a.PNG", "--top", "2"});
  EXPECT_EQ(plain.code, 0) << plain.err;
  EXPECT_TRUE(plain.out.starts_with(photos + "/a.PNG   " + fields[1] + " ")) << plain.out;
  EXPECT_NE(plain.out.find(" %   " + fields[3] + " "), std::string::npos) << plain.out;

  auto config = json_of(run.dir() + "/model/config.json");
  config["id2label"] = {{"0", "crane"}, {"1", "bird"}, {"2", "crane"}};
  std::ofstream(run.dir() + "/model/config.json") << config;
  const auto alike = predict({run.dir(), photos + "/a.PNG", "--top", "3"});
  for (const auto* name : {"   crane (0) ", "   bird ", "   crane (2) "})
    EXPECT_NE(alike.out.find(name), std::string::npos) << alike.out;
}

TEST(Predict, Refuses) {
  const auto& run = made_once<RunOnLeaves>();
  const auto empty = run.folder.path() + "/empty";
  fs::create_directories(empty);
  expect_only_refusal(predict({run.dir(), empty}), 3,
                      empty + ": no image (.jpg, .jpeg, .png, .webp, .bmp, .gif, .tif, .tiff) in this folder");
  expect_only_refusal(predict({run.dir(), empty, "--set", "data.name=tensors", "--set", "data.path=" + empty}), 2,
                      "the samples of \"tensors\" are not read from single files");
  for (const char* ranks : {"1", "2"})  // the first one writes it
    expect_only_refusal(
        run_process({TRIREME_COMMAND, "eval", run.dir(), "--report", "/nowhere/report.json", "--ranks", ranks}), 7,
        "/nowhere/report.json: cannot be created: No such file or directory");
  auto config = json_of(run.dir() + "/model/config.json");
  config.erase("id2label");
  std::ofstream(run.dir() + "/model/config.json") << config;
  expect_only_refusal(predict({run.dir(), run.data() + "/validation"}), 7,
                      "/model/config.json: says no classes (id2label)");
}

}  // namespace
}  // namespace trireme::tests
