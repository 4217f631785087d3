// trireme bench: what it measures of layouts and of another program, and that it leaves nothing behind.
#include <algorithm>

#include "tests/command/metrics.h"

namespace trireme::tests {
namespace {

std::vector<std::string> bench_of(const SmallRun& run, std::vector<std::string> more) {
  more.insert(more.begin(), {TRIREME_COMMAND, "bench", run.config});
  if (std::find(more.begin(), more.end(), "--seconds") == more.end()) more.insert(more.end(), {"--seconds", "1"});
  return more;
}

TEST(Bench, MeasuresLayoutsAndAnotherProgramInTurn) {
  const SmallRun run(kLeaves, "epochs = 1\nglobal_batch = 8\n");
  const auto result = run_process(
      bench_of(run, {"--layouts", "dp=1; dp=2,zero=2; pp=2", "--set", "run.peak_tflops=1", "--against",
                     R"(echo about; echo '{"step_s": [0.25, 0.5, 0.75], "samples": 8}'; echo done)", "--json"}));
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_FALSE(fs::exists(run.dir())) << "a run folder";
  const auto rows = nlohmann::json::parse(result.out);
  ASSERT_EQ(rows.size(), 4U);
  for (const auto& row : rows) {
    SCOPED_TRACE(row.dump());
    const auto& step = row.at("step_s");
    EXPECT_EQ(step.at("rounds").size(), 2U);
    EXPECT_GE(row.at("steps"), 6);
    EXPECT_LE(step.at("p10"), step.at("median"));
    EXPECT_LE(step.at("median"), step.at("p90"));
    EXPECT_DOUBLE_EQ(row.at("samples_per_s"), row.at("samples").get<double>() / step.at("median").get<double>());
    if (row.at("ranks").is_null()) continue;
    EXPECT_EQ(row.at("sent_bytes") > 0, row.at("ranks") == 2);
    EXPECT_GT(row.at("mfu"), 0);
    EXPECT_GT(row.at("first_step_s"), 0);
    double split = 0;
    for (const auto& [part, seconds] : row.at("split").items()) split += seconds.get<double>();
    EXPECT_GT(split, 0);
    for (const auto* part : {"forward", "backward", "optimizer"}) EXPECT_GT(row.at("split").at(part), 0) << part;
    const auto& memory = row.at("memory");
    std::int64_t held = 0;
    for (const auto* part : {"weights", "gradients", "optimizer", "average", "gathered", "activations"})
      held += memory.at(part).get<std::int64_t>();
    EXPECT_EQ(held, memory.at("peak"));
    EXPECT_GT(memory.at("process"), memory.at("peak"));
  }
  EXPECT_LT(rows[1].at("memory").at("optimizer"), rows[0].at("memory").at("optimizer")) << "ZeRO has not divided it";
  EXPECT_EQ(rows[3].at("step_s").at("median"), 0.5);
}

TEST(Bench, PrintsTables) {
  const SmallRun run;
  const auto result = run_process(bench_of(run, {"--ranks", "2"}));
  ASSERT_EQ(result.code, 0) << result.err;
  const auto lines = lines_of(result.out);
  ASSERT_EQ(lines.size(), 10U) << result.out;
  EXPECT_EQ(lines[0].find("round 1 of 1: run.toml: "), 0U);
  for (const auto& [line, begin] : {std::pair{2, "step "}, {5, "ms of a step "}, {8, "MiB of the fullest rank "}})
    EXPECT_EQ(lines[static_cast<std::size_t>(line)].find(begin), 0U) << result.out;
}

TEST(Bench, ProfilesOperators) {
  const SmallRun run;
  const auto file = run.folder.path() + "/trace.json";
  const auto result = run_process(bench_of(run, {"--ranks", "2", "--profile", file}));
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(count_of(result.out, "\noperators of run.toml "), 1) << result.out;
  const auto events = json_of(file).at("traceEvents");
  EXPECT_EQ(events.at(0).at("args").at("name"), "run.toml");
  double last = 0, flops = 0;
  int products = 0;
  for (std::size_t i = 1; i < events.size(); ++i) {
    EXPECT_GE(events[i].at("ts"), last) << "of one thread, and none inside another";
    last = events[i].at("ts").get<double>() + events[i].at("dur").get<double>();
    flops += events[i].at("args").at("flops").get<double>();
    products += events[i].at("name") == "addmm";
  }
  EXPECT_GT(flops, 0);
  // The model's three blocks, and the loss and the optimizer outside of them.
  EXPECT_EQ(count_of(result.out, "\nms of blocks of run.toml "), 1) << result.out;
  // One forward for each weight, and two backward, or one where the inputs have no gradient.
  std::map<int, int> products_of;
  for (std::size_t i = 1; i < events.size(); ++i)
    if (events[i].at("cat") == "product") products_of[events[i].at("args").at("block").get<int>()] += 1;
  const std::map<int, int> expected{{0, 3 * 2}, {1, 3 * 6 * 3}, {2, 3 * 3}};
  EXPECT_EQ(products_of, expected) << result.out;
  EXPECT_GE(products, 3 * 4) << "in three steps those of a block and a head";
}

TEST(Bench, Refusals) {
  const SmallRun run;
  const struct {
    std::vector<std::string> arguments;
    int code;
    std::string message;
  } rows[] = {
      {{"--layouts", "dp=2", "--ranks", "2"}, 2, "--ranks is for the layout of the file"},
      {{"--layouts", "tp=3"}, 2, "--layouts: \"tp=3\": "},
      {{"--layouts", ";"}, 2, "--layouts: names none"},
      {{"--profile", "/none/trace.json"}, 2, "--profile /none/trace.json: No such file or directory"},
      {{"--seconds", "0"}, 2, "--seconds 0: must be at least 1"},
      {{"--set", "train.epoch=1"}, 2, "no key"},
      {{"--against", "echo {}"}, 2, "it printed no line of JSON with \"step_s\""},
      {{"--against", "echo '{\"step_s\": [1, -1]}'"}, 2, "it printed no line of JSON with \"step_s\""},
  };
  for (const auto& row : rows) {
    SCOPED_TRACE(row.message);
    expect_refusal(run_process(bench_of(run, row.arguments)), row.code, row.message);
  }
}

}  // namespace
}  // namespace trireme::tests
