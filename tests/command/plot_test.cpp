// trireme plot: what its page and its SVG hold of runs, and that text of run folders stays text.
#include <cmath>
#include <set>

#include "tests/command/metrics.h"

namespace trireme::tests {
namespace {

using nlohmann::json;

constexpr double kBegin = 1'795'820'000;  ///< Unix seconds

json start_line(double time, json more = json::object()) {
  json line{{"kind", "event"},      {"event", "start"},      {"step", 0},
            {"steps", 4},           {"time", time},          {"start_up_s", 1.0},
            {"layout", "1 = dp 1"}, {"plugin", "torch_ddp"}, {"best_by", {{"name", "accuracy"}, {"fraction", true}}}};
  line.update(more);
  return line;
}

json step_line(int step, double loss, json more = json::object()) {
  json line{{"kind", "step"}, {"step", step},     {"time", kBegin + step}, {"loss", loss},    {"lr", 0.1 / step},
            {"samples", 8},   {"grad_norm", 2.0}, {"samples_per_s", 16.0}, {"data_wait", 0.5}};
  line.update(more);
  return line;
}

json event_line(const char* event, int step, double time, json more = json::object()) {
  json line{{"kind", "event"}, {"event", event}, {"step", step}, {"time", time}};
  line.update(more);
  return line;
}

/// Run folders that are written by hand.
struct Runs {
  TemporaryFolder folder;

  std::string add(const std::string& name, int seed, const std::vector<json>& lines, const std::string& settings = "",
                  const std::string& last_line = "") const {
    folder.write(name + "/config.toml", "[run]\ndir = \"/elsewhere/" + std::to_string(seed) +
                                            "\"\nseed = " + std::to_string(seed) + "\n" + settings);
    std::string text;
    for (const auto& line : lines) text += line.dump() + "\n";
    folder.write(name + "/metrics.jsonl", text + last_line);
    return folder.path() + "/" + name;
  }
  [[nodiscard]] ProcessResult plot(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), {TRIREME_COMMAND, "plot"});
    return run_process(arguments, {.folder = folder.path()});
  }
  /// What the page's script reads.
  [[nodiscard]] json page(const std::vector<std::string>& arguments) const {
    const auto result = plot(arguments);
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_EQ(result.out.find("wrote plot.html: "), 0U) << result.out;
    const auto text = content_of(folder.path() + "/plot.html");
    const std::string before = "id=\"data\">";
    const auto begin = text.find(before) + before.size();
    return json::parse(text.substr(begin, text.find("</script>", begin) - begin));
  }
  [[nodiscard]] std::string svg(std::vector<std::string> arguments) const {
    arguments.insert(arguments.end(), {"--out", "one.svg"});
    const auto result = plot(arguments);
    EXPECT_EQ(result.code, 0) << result.err;
    return content_of(folder.path() + "/one.svg");
  }
};

const json& chart(const json& page, const std::string& id) {
  for (const auto& each : page.at("charts"))
    if (each.at("id") == id) return each;
  static const json none;
  ADD_FAILURE() << "no chart " << id;
  return none;
}

const std::string& share() {
  static const auto folder = fs::path(TRIREME_COMMAND).parent_path().parent_path().string() + "/share/trireme/plot/";
  return folder;
}

/// Every tag of the document is closed, in order, and no character is left that XML would not take in a text.
void expect_well_formed(const std::string& svg) {
  std::vector<std::string> open;
  for (auto at = svg.find('<'); at != svg.npos; at = svg.find('<', at + 1)) {
    const auto end = svg.find('>', at);
    ASSERT_NE(end, svg.npos);
    const auto tag = svg.substr(at + 1, end - at - 1);
    EXPECT_EQ(tag.find('<'), tag.npos) << tag;
    EXPECT_EQ(count_of(tag, "\"") % 2, 0) << tag;
    if (tag.front() == '?' || tag.back() == '/') continue;
    const auto name = tag.substr(0, tag.find(' '));
    if (name.front() != '/') {
      open.push_back(name);
    } else {
      ASSERT_FALSE(open.empty()) << name;
      EXPECT_EQ("/" + open.back(), name);
      open.pop_back();
    }
  }
  EXPECT_TRUE(open.empty());
  for (auto at = svg.find('&'); at != svg.npos; at = svg.find('&', at + 1))
    EXPECT_TRUE(svg.compare(at, 4, "&lt;") == 0 || svg.compare(at, 4, "&gt;") == 0 ||
                svg.compare(at, 5, "&amp;") == 0 || svg.compare(at, 6, "&quot;") == 0)
        << svg.substr(at, 20);
}

TEST(Plot, ThePageHoldsTheLinesOfARun) {
  const Runs runs;
  const auto dir = runs.add(
      "a", 1,
      {start_line(kBegin),
       step_line(1, 3),
       event_line("save", 1, kBegin + 1.5, {{"held_s", 0.1}}),
       step_line(2, 2.5),
       {{"kind", "step"}, {"step", 3}, {"time", kBegin + 3}, {"loss", nullptr}, {"samples", 8}},
       {{"kind", "eval"},
        {"split", "validation"},
        {"step", 2},
        {"epoch", 1},
        {"time", kBegin + 3.5},
        {"samples", 5},
        {"seconds", 0.5},
        {"loss", 2.75},
        {"accuracy", 0.5},
        {"top_k", 1.0},
        {"k", 3},
        {"train_loss", 2.0},
        {"best", true}},
       {{"kind", "eval"}, {"split", "test"}, {"step", 2}, {"time", kBegin + 4}, {"loss", 9}, {"accuracy", 0.9}},
       start_line(kBegin + 10, {{"step", 2}, {"idle_s", 4}, {"restart", {{"number", 1}, {"cause", "rank 1 died"}}}}),
       event_line("rollback", 2, kBegin + 12, {{"cause", "the loss is nan"}})},
      "", "{\"kind\": \"step\", \"step\": 4, \"lo");
  const json ranks{{{"rank", 0}, {"peak_tensor_bytes", 900}, {"parameter_bytes", 500}},
                   {{"rank", 1},
                    {"peak_tensor_bytes", 1000},
                    {"parameter_bytes", 300},
                    {"gradient_bytes", 200},
                    {"optimizer_bytes", 100},
                    {"average_bytes", 50},
                    {"peak_gathered_bytes", 25}}};
  const json split{{"data", 0.1}, {"forward", 1.5}, {"backward", 3}, {"optimizer", "?"}, {"communication", nullptr}};
  runs.folder.write("a/summary.json", json{{"finished", true}, {"ranks", ranks}, {"split", split}}.dump());
  const auto page = runs.page({dir});

  const auto& loss = chart(page, "loss").at("series");
  ASSERT_EQ(loss.size(), 1U);
  EXPECT_EQ(loss[0], json::parse(R"({"group": 0, "step": [1, 2], "samples": [8, 16], "seconds": [2.0, 3.0],
                                     "value": [3.0, 2.5]})"));
  std::vector<std::string> ids;
  for (const auto& each : page.at("charts")) ids.push_back(each.at("id"));
  EXPECT_EQ(
      ids, (std::vector<std::string>{"loss", "validation_loss", "accuracy", "top_k", "lr", "grad_norm", "throughput"}));
  EXPECT_EQ(chart(page, "validation_loss").at("series")[0].at("value"), json({2.75}));
  EXPECT_EQ(chart(page, "accuracy").at("series")[0].at("samples"), json({16}));
  EXPECT_EQ(chart(page, "throughput").at("series")[0].at("value"), json({16.0, 16.0}));

  std::vector<std::pair<std::string, std::string>> marks;
  for (const auto& mark : page.at("marks")) marks.emplace_back(mark.at("kind"), mark.at("text"));
  EXPECT_EQ(marks,
            (std::vector<std::pair<std::string, std::string>>{{"checkpoint", "checkpoint, step 1"},
                                                              {"evaluation", "evaluation, step 2"},
                                                              {"start", "start from step 2 after: rank 1 died"},
                                                              {"rollback", "rollback to step 2: the loss is nan"}}));
  EXPECT_EQ(page.at("memory").at("bars"), json::parse(R"([{"run": 0, "rank": 1, "values": [300.0, 200.0, 100.0, 50.0,
                                                          25.0, 325.0]}])"));
  EXPECT_EQ(page.at("step").at("bars"), json::parse(R"([{"run": 0, "values": [0.1, 1.5, 3.0, 0.0, 0.0, 0.0]}])"));
  const auto& times = page.at("times").at("bars")[0].at("values");
  double wall = 0;
  for (const auto& seconds : times) wall += seconds.get<double>();
  EXPECT_EQ(times.size(), page.at("times").at("parts").size());
  EXPECT_NEAR(wall, 13, 1e-9);  // from the start-up of the first start to the last line
  EXPECT_EQ(page.at("settings").at("columns"), json::array());
  EXPECT_EQ(page.at("results").at("rows")[0][0], "finished");
  EXPECT_EQ(page.at("results").at("rows")[0][2], "accuracy 50.0 %");
  EXPECT_EQ(page.at("most_points"), 0);

  // It is one file: it loads nothing, and its policy would not let it.
  const auto text = content_of(runs.folder.path() + "/plot.html");
  EXPECT_EQ(count_of(text, "http"), count_of(content_of(share() + "chart.min.js"), "http") + 1) << "http-equiv is ours";
  EXPECT_NE(text.find("default-src 'none'"), text.npos);
  for (const auto* loads : {" src=", "<link", "@import", "url("}) {
    EXPECT_EQ(count_of(text, loads), count_of(content_of(share() + "chart.min.js"), loads)) << loads;
  }
}

TEST(Plot, SeedsBecomeABandAndOtherSettingsATable) {
  const Runs runs;
  const auto lines = [](double shift, int steps, const char* layout = "1 = dp 1") {
    std::vector<json> out{start_line(kBegin, {{"layout", layout}})};
    for (int step = 1; step <= steps; ++step) out.push_back(step_line(step, 4.0 / step + shift));
    return out;
  };
  const std::string lr = "[optimizer]\nlr = 0.1\n", many = "[[optimizer.group]]\nparameters = \"bias\"\n";
  runs.add("deep/base-seed10", 10, lines(0, 4), lr);
  runs.add("deep/base-seed11", 11, lines(0.5, 4), lr);
  runs.add("deep/base-seed12", 12, lines(-0.5, 2), lr);  // it has been stopped
  runs.add("deep/high", 10, lines(1, 4), "[optimizer]\nlr = 0.2\n" + many);
  runs.add("deep/two ranks", 13, lines(2, 4, "2 = dp 2"), lr);
  runs.add("deep/same seed", 10, lines(3, 4), lr);
  const auto page = runs.page({"deep", "deep/high"});

  std::vector<std::string> groups, names;
  for (const auto& group : page.at("groups")) groups.push_back(group.at("name"));
  for (const auto& run : page.at("runs")) names.push_back(run.at("name"));
  EXPECT_EQ(groups, (std::vector<std::string>{"base (3 seeds)", "high", "same seed", "two ranks"}));
  EXPECT_EQ(names,
            (std::vector<std::string>{"base-seed10", "base-seed11", "base-seed12", "high", "same seed", "two ranks"}));
  const auto& series = chart(page, "loss").at("series");
  ASSERT_EQ(series.size(), 4U);
  EXPECT_EQ(series[0], json::parse(R"({"group": 0, "step": [1, 2], "samples": [8, 16], "seconds": [2.0, 3.0],
                                       "value": [4.0, 2.0], "least": [3.5, 1.5], "most": [4.5, 2.5]})"));
  EXPECT_EQ(series[1].at("value"), json({5.0, 3.0, 2.33333, 2.0}));
  EXPECT_FALSE(series[1].contains("least"));
  EXPECT_EQ(page.at("settings").at("columns"), json({"optimizer.group[1].parameters", "optimizer.lr", "run.seed"}));
  EXPECT_EQ(page.at("settings").at("rows")[1], json({"", "0.1", "11"}));
  EXPECT_EQ(page.at("settings").at("rows")[3], json({"bias", "0.2", "10"}));
  EXPECT_EQ(page.at("memory").at("bars"), json::array());
  EXPECT_EQ(page.at("step").at("bars"), json::array());

  const auto svg = runs.svg({"deep", "--chart", "loss"});
  expect_well_formed(svg);
  EXPECT_EQ(count_of(svg, "<polyline "), 4);
  EXPECT_EQ(count_of(svg, "<polygon "), 1);
  EXPECT_NE(svg.find(">base (3 seeds)</text>"), svg.npos);
  EXPECT_NE(svg.find("<title>Training loss</title>"), svg.npos);
}

TEST(Plot, TokensAreCountedWhereEveryStepHasRecordedThem) {
  const Runs runs;
  const json validation{{"kind", "eval"}, {"split", "validation"}, {"step", 2}, {"time", kBegin + 2.5}, {"loss", 2}};
  for (const int seed : {1, 2}) {
    const json three{{"tokens", std::int64_t{3'000'000'000} * seed}}, five{{"tokens", 5}};
    runs.add("seed" + std::to_string(seed), seed,
             {step_line(1, 3, three), step_line(2, 2, five), validation, event_line("save", 2, kBegin + 3)});
  }
  runs.add("older start", 1, {step_line(1, 3), step_line(2, 2, {{"tokens", 5}}), validation},
           "[model]\nname = \"x\"\n");

  const auto seeds = runs.page({"seed1", "seed2"});
  EXPECT_EQ(chart(seeds, "loss").at("series")[0].at("tokens"), json({4'500'000'000, 4'500'000'005}));
  EXPECT_EQ(chart(seeds, "validation_loss").at("series")[0].at("tokens"), json({4'500'000'005}));
  EXPECT_EQ(seeds.at("marks")[1].at("tokens"), json(3'000'000'005)) << seeds.at("marks");
  const auto older = runs.page({"older start"});
  for (const auto& each : older.at("charts")) EXPECT_FALSE(each.at("series")[0].contains("tokens")) << each;
}

TEST(Plot, TextOfRunFoldersStaysText) {
  const Runs runs;
  const std::string hostile = "</script><b>&\"'<!--<script>{{page.js}}", metric = hostile + "\x01";
  std::string dir = "<i>&\"quoted\xff";
  runs.add(dir, 1,
           {start_line(kBegin, {{"layout", hostile}}),
            step_line(1, 1),
            {{"kind", "eval"}, {"split", "validation"}, {"step", 1}, {"time", kBegin + 2}, {"loss", 1}, {metric, 0.5}},
            event_line("rollback", 1, kBegin + 3, {{"cause", hostile}}),
            {{"kind", 5}, {"step", "x"}, {"time", {1}}},
            {{"kind", "step"}, {"step", 2}, {"time", kBegin + 4}, {"loss", "2"}}},
           "[model]\nname = '''" + hostile + "'''\n");
  runs.add("other", 1, {step_line(1, 1e300), step_line(2, -1e300)}, "[model]\nname = \"vit\"\n");
  const auto page = runs.page({"."});
  EXPECT_EQ(page.at("settings").at("rows")[0], json({hostile}));
  EXPECT_EQ(chart(page, metric).at("title"), "Validation " + metric);
  EXPECT_EQ(page.at("marks").back().at("text"), "rollback to step 1: " + hostile);
  EXPECT_EQ(page.at("runs")[0].at("name"), "<i>&\"quoted\xEF\xBF\xBD");
  const auto text = content_of(runs.folder.path() + "/plot.html"), plain = content_of(share() + "page.html");
  EXPECT_EQ(count_of(text, "</script"), count_of(plain, "</script"));
  EXPECT_EQ(count_of(text, "<!--"), count_of(plain, "<!--"));
  EXPECT_EQ(count_of(text, "const data = "), 1);

  for (const auto& name : {metric, std::string("loss")}) {
    const auto svg = runs.svg({".", "--chart", name});
    expect_well_formed(svg);
    EXPECT_EQ(svg.find('\x01'), svg.npos);
    EXPECT_EQ(svg.find('\xff'), svg.npos);
    EXPECT_EQ(svg.find("nan"), svg.npos);
    EXPECT_EQ(svg.find("inf"), svg.npos);
  }
}

TEST(Plot, LongSeriesKeepTheirSpikes) {
  const Runs runs;
  std::vector<json> lines;
  for (int step = 1; step <= 50'000; ++step) lines.push_back(step_line(step, step == 31'234 ? 99 : 2 + std::sin(step)));
  for (int step = 1; step <= 500; ++step) lines.push_back(event_line("save", step, kBegin + step));
  runs.add("long", 1, lines);
  const auto page = runs.page({"long"});
  const auto& loss = chart(page, "loss").at("series")[0];
  const auto steps = loss.at("step").get<std::vector<int>>();
  const auto values = loss.at("value").get<std::vector<double>>();
  EXPECT_EQ(page.at("most_points"), 2000);
  EXPECT_LE(steps.size(), 2000U);
  EXPECT_GE(steps.size(), 1900U);
  EXPECT_TRUE(std::is_sorted(steps.begin(), steps.end()));
  EXPECT_EQ(steps.front(), 1);
  EXPECT_EQ(steps.back(), 50'000);
  const auto spike = std::find(steps.begin(), steps.end(), 31'234);
  ASSERT_NE(spike, steps.end());
  const auto at = static_cast<std::size_t>(spike - steps.begin());
  EXPECT_EQ(values[at], 99);
  // For smoothing each point has the mean of its part, here of about 50 steps.
  const auto means = loss.at("means").at("value").get<std::vector<double>>();
  ASSERT_EQ(means.size(), values.size());
  EXPECT_EQ(means.front(), values.front());
  EXPECT_EQ(means.back(), values.back());
  EXPECT_NEAR(means[at], 2 + 97 / 50., 0.1);
  const auto is_far = [](double mean) { return std::abs(mean - 2) > 0.1; };
  EXPECT_EQ(std::count_if(means.begin() + 1, means.end() - 1, is_far), 2) << "the two points of the spike's part";
  EXPECT_FALSE(loss.at("means").contains("least"));
  EXPECT_EQ(loss.at("samples").back(), 400'000);
  EXPECT_EQ(page.at("marks").size(), 200U);
  EXPECT_LT(fs::file_size(runs.folder.path() + "/plot.html"), 1'000'000U);
}

TEST(Plot, ARunWithoutStepsHasItsRowInTheTable) {
  const Runs runs;
  runs.add("new", 1, {});
  runs.add("empty.toml", 1, {start_line(kBegin)});
  const auto page = runs.page({"new", "empty.toml"});
  EXPECT_EQ(page.at("charts"), json::array());
  EXPECT_EQ(page.at("results").at("rows").size(), 2U);
  expect_only_refusal(runs.plot({"new", "--chart", "loss"}), 2, "these runs have no such chart (known: none)");
}

TEST(Plot, RefusesWhatItCannotDraw) {
  const Runs runs;
  runs.add("a", 1, {step_line(1, 1)});
  runs.add("torn", 1, {step_line(1, 1)}, "[model\n");
  fs::create_directories(runs.folder.path() + "/empty");
  struct Case {
    std::vector<std::string> arguments;
    int code;
    std::string message;
  };
  const std::vector<Case> cases{
      {{}, 2, "RUN is required  (trireme plot --help)"},
      {{"none"}, 2, "none: no such folder; name one with runs in it, or a run"},
      {{"empty"}, 2, "empty: neither a run nor a folder with runs"},
      {{"torn"}, 2, "torn/config.toml:4:7: not valid TOML"},
      {{"a", "--out", "run.toml"}, 2, "--out run.toml: the name of the page must end in .html"},
      {{"a", "--out", "a.svg"}, 2, "must end in .html, or add --chart NAME for one chart as SVG"},
      {{"a", "--out", ""}, 2, "must end in .html"},
      {{"a", "--chart", "loss", "--out", "a.html"}, 2, "--out a.html: the name of one chart must end in .svg"},
      {{"a", "--chart", "los"},
       2,
       "these runs have no such chart (known: loss, lr, grad_norm, throughput); did you mean \"loss\"?"},
      {{"a", "--chart", ""}, 2, "these runs have no such chart"},
      {{"a", "--out", "a/plot.html"}, 2, "is the folder of a run, which may hold no other files"},
      {{"a", "--out", "none/plot.html"}, 7, "none/plot.html cannot be written: No such file or directory"}};
  for (const auto& [arguments, code, message] : cases) {
    SCOPED_TRACE(message);
    expect_only_refusal(runs.plot(arguments), code, message);
  }
  EXPECT_FALSE(fs::exists(runs.folder.path() + "/plot.html"));
}

TEST(Plot, WithoutChartJsItDrawsSvgOnly) {
  const Runs runs;
  runs.add("a", 1, {step_line(1, 1), step_line(2, 0.5)});
  const auto prefix = runs.folder.path() + "/installed";
  fs::create_directories(prefix + "/bin");
  fs::create_directories(prefix + "/share/trireme");
  fs::copy_file(TRIREME_COMMAND, prefix + "/bin/trireme");
  fs::copy(share(), prefix + "/share/trireme/plot");
  fs::remove(prefix + "/share/trireme/plot/chart.min.js");
  const auto plot = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {prefix + "/bin/trireme", "plot", "a"});
    return run_process(arguments, {.folder = runs.folder.path()});
  };
  expect_only_refusal(plot({}), 2, "Install Debian's libjs-chart.js");
  const auto drawn = plot({"--chart", "loss"});
  EXPECT_EQ(drawn.code, 0) << drawn.err;
  EXPECT_EQ(drawn.out.find("wrote plot.svg: 1 run, 1 chart, "), 0U) << drawn.out;
  fs::remove(prefix + "/share/trireme/plot/page.css");
  expect_only_refusal(plot({}), 2, "page.css is missing: the build or the installation is not complete");
}

}  // namespace
}  // namespace trireme::tests
