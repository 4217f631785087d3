// `trireme predict` for what tables have a model learn, of images and of texts: classes, labels and numbers. What it
// prints has the loss that the evaluation of the run has found.
#include <cmath>
#include <functional>
#include <sstream>

#include "tests/command/table_run.h"

namespace trireme::tests {
namespace {

using nlohmann::json;

/// The row of a table by its columns; no cell has quotes.
std::vector<std::map<std::string, std::string>> rows_of(const std::string& csv) {
  std::vector<std::map<std::string, std::string>> rows;
  std::vector<std::string> names;
  for (const auto& line : lines_of(csv)) {
    std::vector<std::string> cells;
    std::istringstream stream(line);
    for (std::string cell; std::getline(stream, cell, ',');) cells.push_back(cell);
    if (names.empty()) {
      names = cells;
      continue;
    }
    auto& row = rows.emplace_back();
    for (std::size_t i = 0; i < std::min(names.size(), cells.size()); ++i) row[names[i]] = cells[i];
  }
  return rows;
}

/// A task: what the run's [data] says of it, and the loss of one prediction.
struct Case {
  const char *name, *keys;
  std::function<double(const json& predicted, const std::map<std::string, std::string>& row)> loss;
};

const Case kCases[] = {
    {"classes", "",
     [](const json& predicted, const auto& row) {
       EXPECT_EQ(predicted["class"], predicted["top"][0]["class"]);
       EXPECT_EQ(predicted["probability"], predicted["top"][0]["probability"]);
       for (const auto& each : predicted["top"])
         if (each["class"] == row.at("label")) return -std::log(each["probability"].template get<double>());
       return std::nan("");
     }},
    {"labels", "labels = [\"rust\", \"spots\"]\n",
     [](const json& predicted, const auto& row) {
       EXPECT_EQ(predicted["labels"].size(), 2U);
       EXPECT_EQ(predicted["top"].size(), 2U);
       EXPECT_GE(predicted["top"][0]["probability"], predicted["top"][1]["probability"]);
       double loss = 0;
       for (const auto& each : predicted["top"]) {
         const double p = each["probability"];
         EXPECT_EQ(predicted["labels"][each["label"].template get<std::string>()], p);
         const auto& cell = row.at(each["label"]);
         loss -= std::log(cell == "1" || cell == "True" ? p : 1 - p) / 2;
       }
       return loss;
     }},
    {"numbers", "numbers = [\"age\"]\n",
     [](const json& predicted, const auto& row) {
       EXPECT_EQ(predicted["values"].size(), 1U);
       return std::pow(predicted["values"]["age"].template get<double>() - std::stod(row.at("age")), 2);
     }},
};

/// A trained run on texts with classes.
struct RunOnTexts : RunOnTable {
  RunOnTexts() : RunOnTable(false, "") { train_well(*this, 1); }
};

/// The output of a prediction.
std::string predicted(const SmallRun& run, const Arguments& inputs, const Arguments& options = {}) {
  Arguments arguments{TRIREME_COMMAND, "predict", run.dir()};
  arguments.insert(arguments.end(), inputs.begin(), inputs.end());
  arguments.insert(arguments.end(), options.begin(), options.end());
  const auto result = run_process(arguments);
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  return result.out;
}

ProcessResult refused(const SmallRun& run, Arguments arguments) {
  arguments.insert(arguments.begin(), {TRIREME_COMMAND, "predict", run.dir()});
  return run_process(arguments);
}

TEST(PredictTables, HasTheLossOfTheEvaluation) {
  for (const bool images : {true, false})
    for (const auto& c : kCases) {
      SCOPED_TRACE(std::string(images ? "images, " : "texts, ") + c.name);
      const RunOnTable run(images, c.keys);
      train_well(run, 1);
      const auto rows = rows_of(content_of(run.table()));
      Arguments inputs{run.table()};
      if (images) inputs.clear();
      for (const auto& row : rows)
        if (images) inputs.push_back(run.leaves() + "/" + row.at("file_name"));
      const bool numbers = std::string(c.name) == "numbers";
      const auto lines =
          lines_of(predicted(run, inputs, numbers ? Arguments{"--jsonl"} : Arguments{"--jsonl", "--top", "9"}));
      ASSERT_EQ(lines.size(), rows.size());
      double loss = 0;
      for (std::size_t i = 0; i < rows.size(); ++i) {
        const auto line = json::parse(lines[i]);
        EXPECT_EQ(line[images ? "image" : "text"], images ? inputs[i] : rows[i].at("text"));
        loss += c.loss(line, rows[i]) / static_cast<double>(rows.size());
      }
      const double expected = metrics_of(run.dir(), "eval", "validation").back()["loss"];
      EXPECT_NEAR(loss, expected, 1e-5 * expected);
      for (const auto* format : {"--jsonl", "--csv"})
        EXPECT_EQ(predicted(run, inputs, {format, "--batch", "1"}), predicted(run, inputs, {format, "--batch", "7"}));
    }
}

TEST(PredictTables, PrintsLabelsAndNumbers) {
  const RunOnTable labels(false, "labels = [\"rust\", \"spots\"]\n"), numbers(false, "numbers = [\"age\"]\n");
  train_well(labels, 1);
  train_well(numbers, 1);
  const auto text = labels.folder.write("one.txt", "\n  \ntwo\twords\n");
  const auto csv = lines_of(predicted(labels, {text}, {"--csv"}));
  ASSERT_EQ(csv.size(), 2U);
  EXPECT_EQ(csv[0], "text,rust,spots");
  const auto rows = rows_of(csv[0] + "\n" + csv[1]);
  EXPECT_EQ(rows[0].at("text"), "two\twords");
  // A line shows the labels of at least 0.5.
  std::string expected = "two words";
  for (const auto* label : {"rust", "spots"}) {
    char percent[32];
    std::snprintf(percent, sizeof percent, "   %s %.1f %%", label, 100 * std::stod(rows[0].at(label)));
    if (std::stod(rows[0].at(label)) >= 0.5) expected += percent;
  }
  EXPECT_EQ(predicted(labels, {text}), expected + (expected == "two words" ? "   -\n" : "\n"));
  EXPECT_EQ(lines_of(predicted(labels, {text}, {"--csv", "--top", "1"}))[0], "text,label,probability");
  const auto of_numbers = lines_of(predicted(numbers, {text}, {"--csv"}));
  EXPECT_EQ(of_numbers[0], "text,age");
  EXPECT_EQ(predicted(numbers, {text}),
            "two words   age " + rows_of(of_numbers[0] + "\n" + of_numbers[1])[0]["age"] + "\n");
  expect_only_refusal(refused(numbers, {text, "--top", "2"}), 2,
                      "--top: the task \"regression\" predicts numbers, none of which is more probable; remove it");
}

TEST(PredictTables, ReadsFilesOfTexts) {
  const auto& run = made_once<RunOnTexts>();
  const auto dir = run.folder.path() + "/texts";
  // The same texts in each format; a table's other columns do not matter.
  run.folder.write("texts/a.txt", "one\nzwei \xC3\xA4\n\n");
  run.folder.write("texts/b/c.jsonl", "{\"text\": \"one\"}\n{\"text\": \"zwei \xC3\xA4\", \"label\": 3}\n");
  run.folder.write("texts/b/d.csv", "label,text\n,one\nunknown,zwei \xC3\xA4\n");
  run.folder.write("texts/e.tsv", "text\none\nzwei \xC3\xA4\n");
  run.folder.write("texts/.hidden.txt", "hidden\n");
  run.folder.write("texts/notes.md", "notes\n");
  const auto all = lines_of(predicted(run, {dir}));
  ASSERT_EQ(all.size(), 8U);
  EXPECT_TRUE(all[0].starts_with("one      ")) << all[0];
  EXPECT_TRUE(all[1].starts_with("zwei \xC3\xA4   ")) << all[1];
  for (std::size_t i = 2; i < 8; ++i) EXPECT_EQ(all[i], all[i - 2]);
  EXPECT_EQ(lines_of(predicted(run, {dir + "/e.tsv", dir + "/a.txt"})), std::vector(all.begin(), all.begin() + 4));
  const auto longer = run.folder.write("long.txt", std::string(100, 'x') + "\n" + std::string(60, 'y') + "\n");
  const auto shown = lines_of(predicted(run, {longer}));
  EXPECT_TRUE(shown[0].starts_with(std::string(57, 'x') + "...   ")) << shown[0];
  EXPECT_TRUE(shown[1].starts_with(std::string(60, 'y') + "   ")) << shown[1];
  EXPECT_EQ(json::parse(lines_of(predicted(run, {longer}, {"--jsonl"}))[0])["text"], std::string(100, 'x'));
}

TEST(PredictTables, RefusesBadTextsBeforeItPrints) {
  const auto& run = made_once<RunOnTexts>();
  const auto good = run.folder.write("good.txt", "good\n");
  const auto file = [&](const std::string& name, const std::string& content) {
    return run.folder.write(name, content);
  };
  const struct {
    std::string path, message;
  } cases[] = {
      {file("a.txt", "a\n\n\xFF\n"), ":3: byte 1 of this line, 0xFF, is not UTF-8; convert the file"},
      {file("b.csv", "label,txt\na,b\n"),
       ":1: there is no column \"sentence\" or \"text\" (the columns: label, txt); name the column of the text with "
       "data.text"},
      {file("c.jsonl", "{\"text\": \"a\"}\n{\"label\": 1}\n"),
       ":2: there is no column \"sentence\" or \"text\" (the columns: label); name the column of the text with "
       "data.text"},
      {file("d.txt", " \n\n"), ": has only blank lines"},
      {file("e.tsv", "text\nx\n\t\n"), ":3: 2 fields, but the first row names 1 (text)"},
      {file("f.md", "a\n"), ": is no file of texts (.tsv, .csv, .jsonl, .txt)"},
      {run.folder.path() + "/none.txt", ": cannot be opened: No such file or directory"},
      {run.dir() + "/model", ": no file of texts (.tsv, .csv, .jsonl, .txt) in this folder"},
  };
  for (const auto& c : cases) expect_only_refusal(refused(run, {good, c.path}), 3, c.path + c.message);
}

TEST(PredictTables, ReadsPairs) {
  const RunOnTable run(false, "text_pair = \"tags\"\n");
  train_well(run, 1);
  const auto pairs =
      run.folder.write("pairs.csv", "tags,text\nrust,one\n\"more,\nspots\"," + std::string(50, 'x') + "\n");
  const auto lines = lines_of(predicted(run, {pairs}, {"--jsonl"}));
  ASSERT_EQ(lines.size(), 2U);
  const auto first = json::parse(lines[0]);
  EXPECT_EQ(first["text"], "one");
  EXPECT_EQ(first["text_pair"], "rust");
  EXPECT_EQ(first.size(), 4U) << first;
  EXPECT_EQ(json::parse(lines[1])["text_pair"], "more,\nspots");
  EXPECT_EQ(lines_of(predicted(run, {pairs}, {"--csv"}))[0], "text,text_pair,class,probability");
  EXPECT_NE(predicted(run, {pairs}).find(std::string(27, 'x') + "... | more, spots   "), std::string::npos);
  const auto text = run.folder.write("a.txt", "a\n");
  expect_only_refusal(refused(run, {text}), 3, text + ": is no file of pairs of texts (.tsv, .csv, .jsonl)");
}

}  // namespace
}  // namespace trireme::tests
