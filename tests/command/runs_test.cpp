// trireme runs: what it says of runs that train, have ended, were stopped and were killed.
#include "tests/command/launch.h"
#include "tests/command/metrics.h"

namespace trireme::tests {
namespace {

nlohmann::json listed(const std::string& dir) {
  const auto result = run_process({TRIREME_COMMAND, "runs", dir, "--json"});
  EXPECT_EQ(result.code, 0) << result.err;
  nlohmann::json by_name;
  for (const auto& run : nlohmann::json::parse(result.out))
    by_name[fs::path(run.at("run").get<std::string>()).filename().string()] = run;
  return by_name;
}

TEST(Runs, AreListedWithTheirStates) {
  const SmallRun done(kLeaves), endless(kManyLeaves, "epochs = 1\nglobal_batch = 8\n");
  const auto root = done.folder.path() + "/runs";
  const auto into = [&](const char* name) { return "run.dir=" + root + "/" + name; };
  ASSERT_EQ(done.train(2, {"--set", into("deep/er/done"), "--set", "parallel.plugin=hybrid_parallel", "--set",
                           "parallel.tp=2"})
                .code,
            0);
  for (const int signal : {SIGTERM, SIGKILL}) {
    const std::string name = signal == SIGTERM ? "stopped" : "died";
    const auto result = endless.train(1, {"--set", into(name.c_str())}, {.meanwhile = [&](pid_t process) {
                                        const auto metrics = root + "/" + name + "/metrics.jsonl";
                                        EXPECT_TRUE(wait_until([&] {
                                          return fs::exists(metrics) &&
                                                 content_of(metrics).find("\"kind\":\"step\"") != std::string::npos;
                                        }));
                                        EXPECT_EQ(listed(root).at(name).at("state"), "running");
                                        const auto shown = run_process({TRIREME_COMMAND, "top", root + "/" + name});
                                        EXPECT_EQ(shown.code, 0) << shown.err;
                                        EXPECT_NE(shown.out.find(name + ": running, "), std::string::npos) << shown.out;
                                        EXPECT_NE(shown.out.find("\ntrain "), std::string::npos) << shown.out;
                                        kill(process, signal);
                                      }});
    EXPECT_NE(result.code, 0);
  }
  const auto runs = listed(root);
  ASSERT_EQ(runs.size(), 3U) << runs;
  for (const auto* name : {"done", "stopped", "died"}) {
    const auto& run = runs.at(name);
    EXPECT_EQ(run.at("state"), std::string(name) == "done" ? "finished" : name);
    EXPECT_GT(run.at("step"), 0);
    EXPECT_EQ(run.at("times").at("starts"), 1);
    EXPECT_GT(run.at("times").at("goodput"), 0);
  }
  const auto& run = runs.at("done");
  EXPECT_EQ(run.at("steps"), run.at("step"));
  EXPECT_EQ(run.at("layout"), "2 = dp 1 x tp 2");
  EXPECT_EQ(run.at("plugin"), "hybrid_parallel");
  EXPECT_EQ(run.at("best_by"), "accuracy");
  EXPECT_EQ(run.at("best"), json_of(root + "/deep/er/done/summary.json").at("best").at("validation_accuracy"));
  EXPECT_TRUE(runs.at("died").at("best").is_null());

  for (const int columns : {0, 40}) {
    const auto shown = run_process({TRIREME_COMMAND, "top", root + "/deep/er/done"}, {.columns = columns});
    EXPECT_EQ(shown.code, 0) << shown.err;
    for (const auto* label : {"run ", "ranks ", "step ", "train ", "speed ", "valid ", "saved ", "goodput "})
      EXPECT_NE(("\n" + shown.out).find(std::string("\n") + label), std::string::npos) << label << shown.out;
    for (const auto& line : lines_of(shown.out)) EXPECT_TRUE(columns == 0 || line.size() <= 41) << line;
  }

  // The table has the newest run first.
  const auto table = run_process({TRIREME_COMMAND, "runs"}, {.folder = done.folder.path()});
  EXPECT_EQ(table.code, 0) << table.err;
  const auto lines = lines_of(table.out);
  ASSERT_EQ(lines.size(), 4U) << table.out;
  EXPECT_EQ(lines[0].find("run "), 0U);
  EXPECT_EQ(lines[1].find("runs/died "), 0U) << table.out;
  EXPECT_EQ(lines[3].find("runs/deep/er/done  finished  "), 0U) << table.out;
  EXPECT_NE(lines[3].find("  accuracy "), std::string::npos) << table.out;
}

TEST(Runs, AFolderWithoutRunsIsRefused) {
  const TemporaryFolder folder;
  expect_only_refusal(run_process({TRIREME_COMMAND, "runs", folder.path()}), 2, "neither a run nor a folder with runs");
  expect_only_refusal(run_process({TRIREME_COMMAND, "runs", folder.path() + "/none"}), 2, "no such folder");
  expect_only_refusal(run_process({TRIREME_COMMAND, "top", folder.path()}), 2, "no run folder");
}

}  // namespace
}  // namespace trireme::tests
