// trireme plan: a grid of real runs beside their forecasts, a planted difference, refusals, and the table of errors.
#include <algorithm>
#include <cmath>
#include <set>
#include <string>

#include "tests/command/metrics.h"

namespace trireme::tests {
namespace {

struct Case {
  const char* layout;  ///< as sections of the file
  int ranks;
  const char* train = "";
  /// Of the peak. Where stages send to each other, a sender holds a message until its receiver has come, so that the
  /// peak is a little higher than planned and depends on time.
  double tolerance = 0.005;
};

constexpr const char* kDdp = "[parallel]\nplugin = \"torch_ddp\"\n";

/// Trains a few steps, and expects what was planned.
void expect_as_planned(const SmallRun& run, const Case& c) {
  SCOPED_TRACE(std::string(c.layout) + c.train);
  const auto result = run.train(c.ranks, {"--fresh"});
  ASSERT_EQ(result.code, 0) << result.err << result.out;
  const auto summary = json_of(run.dir() + "/summary.json");
  const auto &plan = summary.at("plan"), &measured = summary.at("measured");
  EXPECT_EQ(plan.at("sent_bytes"), measured.at("sent_bytes"));
  EXPECT_EQ(plan.at("sent_bytes") > 0, c.ranks > 1);
  const double planned = plan.at("peak_bytes"), peak = measured.at("peak_bytes");
  EXPECT_NEAR(planned, peak, c.tolerance * peak);
  EXPECT_EQ(count_of(result.out, "\nplan      "), 1) << result.out;
}

TEST(PlanCommand, VisionTransformersCostWhatIsPlanned) {
  const Case cases[] = {
      {kDdp, 1},
      {kDdp, 2, "micro_batch = 2\n"},
      {kDdp, 2, "recompute = true\n"},
      {kDdp, 2, "precision = \"fp64\"\n"},
      {"[parallel]\ntp = 2\n", 2},
      {"[parallel]\nzero = 1\n", 2},
      {"[parallel]\nzero = 2\n[plugin.hybrid_parallel]\ncpu_offload = true\n", 2},
      {"[parallel]\nzero = 3\n", 3},  // 8 samples: 3, 3 and 2
      {"[parallel]\nplugin = \"low_level_zero\"\n", 2, "max_norm = 1.0\n"},
      {"[parallel]\nplugin = \"gemini\"\n", 2, "ema_decay = 0.9\n"},
      {"[parallel]\nsp = 2\nsp_mode = \"all_to_all\"\n", 2},
      {"[parallel]\npp = 2\n", 2, "micro_batch = 2\n", 0.05},
      {"[parallel]\npp = 2\nschedule = \"zbv\"\n", 2, "micro_batch = 2\n", 0.05},
      {"[parallel]\ntp = 2\npp = 2\n", 4, "micro_batch = 4\n", 0.05},
  };
  for (const auto& c : cases) {
    const std::string layout = c.layout, model = "num_layers = 4\n";
    SmallRun run(kLeaves + layout, "epochs = 1\nmax_steps = 3\nglobal_batch = 8\n" + std::string(c.train));
    auto text = content_of(run.config);
    text.replace(text.find("num_layers = 1\n"), 15, model);
    run.folder.write("run.toml", text);
    expect_as_planned(run, c);
  }
}

TEST(PlanCommand, OtherModelsCostWhatIsPlanned) {
  std::string lines;
  for (int i = 0; i < 400; ++i) lines += "what a step costs is known before it runs\n";
  const std::string text = "hidden_size = 16\nnum_layers = 2\nnum_heads = 2\n";
  const std::pair<std::string, bool> models[] = {
      {"name = \"gpt2\"\nmax_positions = 32\n" + text, true},
      {"name = \"llama\"\nintermediate_size = 24\nmax_positions = 32\n" + text, true},
      {"name = \"resnet\"\ndepth = 18\nwidth = 4\n", false},
  };
  for (const auto& [model, reads_text] : models)
    for (const auto& c : {Case{kDdp, 1}, Case{"[parallel]\nzero = 2\n", 2},
                          Case{"[parallel]\npp = 2\n", 2, "micro_batch = 4\n", 0.05}}) {
      SCOPED_TRACE(model);
      const SmallRun run;
      run.folder.write("texts/a.txt", lines);
      run.folder.write("run.toml", "[run]\ndir = \"" + run.dir() + "\"\ndevice = \"cpu\"\n[model]\n" + model +
                                       (reads_text ? "[data]\nname = \"text\"\ntokenizer = \"bytes\"\nblock = 32\n"
                                                     "path = \"" +
                                                         run.folder.path() + "/texts\"\n"
                                                   : std::string(kLeaves)) +
                                       "[train]\nepochs = 1\nmax_steps = 3\nglobal_batch = 8\n" + c.train + c.layout);
      // The buffers of oneDNN's convolutions depend on the CPU; they are planned for one with AVX-512.
      expect_as_planned(run, {c.layout, c.ranks, c.train, reads_text ? c.tolerance : 0.3});
    }
}

std::vector<std::string> plan_of(const SmallRun& run, std::vector<std::string> more) {
  more.insert(more.begin(), {TRIREME_COMMAND, "plan", run.config});
  return more;
}

// No rank starts, and no weight of these is allocated: on this machine 64 ranks of them would not fit.
TEST(PlanCommand, LargeModelsArePlannedInThisProcess) {
  const SmallRun run(kLeaves, "epochs = 1\nglobal_batch = 32\nmicro_batch = 2\n");
  const auto result = run_process(plan_of(
      run, {"--layouts", "dp=2,tp=8,pp=4,zero=1", "--memory", "1GB", "--json", "--set", "model.hidden_size=4096",
            "--set", "model.intermediate_size=16384", "--set", "model.num_heads=32", "--set", "model.num_layers=32"}));
  ASSERT_EQ(result.code, 0) << result.err;
  const auto row = nlohmann::json::parse(result.out).at(0);
  EXPECT_EQ(row.at("layout"), "64 = dp 2 x pp 4 x tp 8");
  EXPECT_FALSE(row.at("fits"));
  // 32 layers of 12 x 4096^2 weights, on tp x pp = 32 ranks; with ZeRO 1 two ranks share the optimizer's state.
  const double weights = 4.0 * 12 * 4096 * 4096;
  EXPECT_NEAR(row.at("memory").at("weights"), weights, 0.01 * weights);
  EXPECT_NEAR(row.at("memory").at("optimizer"), weights, 0.01 * weights);
}

TEST(PlanCommand, TablesMachinesAndLayoutsThatCannotRun) {
  const SmallRun run;
  const auto machine = run.folder.write(
      "machine.toml",
      "name = \"a\"\ndevice = \"cpu\"\nranks_per_host = 2\n[compute]\nlaunch_us = 1\ntflops_fp32 = [0.05]\n"
      "copy_gb_per_s = [10]\n[inside]\nlatency_us = 1\ngb_per_s = 5\n");
  const auto result =
      run_process(plan_of(run, {"--layouts", "dp=1; dp=2; tp=3; pp=4", "--machine", machine, "--memory", "1GiB"}));
  ASSERT_EQ(result.code, 0) << result.err;
  for (const auto* part : {"step  ranks ", "MiB of the fullest rank ", "MB sent in a step by all ranks ",
                           "tp=3 cannot run: ", "pp=4 cannot run: "})
    EXPECT_EQ(count_of(result.out, part), 1) << part << result.out;
  const struct {
    std::vector<std::string> arguments;
    int code;
    std::string message;
  } rows[] = {
      {{"--layouts", "dp=2", "--ranks", "2"}, 2, "--ranks is for the layout of the file"},
      {{"--memory", "80"}, 2, "--memory 80: expected a size with its unit"},
      {{"--machine", run.folder.path() + "/none.toml"}, 2, "none.toml"},
      {{"--machine", run.config}, 2, "run.toml"},
      {{run.config}, 2, "one TOML file is planned"},
      {{"--check", "--ranks", "2"}, 2, "--ranks has no effect with --check"},
      {{"--check"}, 2, "no run that has ended"},
      {{"--ranks", "3", "--set", "parallel.tp=2"}, 2, "tp"},
      {{"--machine", "h100-sxn"}, 2, "did you mean \"h100-sxm\"?"},
      {{"--seconds", "5"}, 2, "--seconds limits a search"},
      {{"--search", "--layouts", "dp=2"}, 2, "--search chooses the layouts itself; remove --layouts"},
      {{"--set", "parallel.plugin=auto"}, 2, "the layout is chosen when ranks train"},
  };
  for (const auto& row : rows) {
    SCOPED_TRACE(row.message);
    expect_refusal(run_process(plan_of(run, row.arguments)), row.code, row.message);
  }
}

nlohmann::json searched(const SmallRun& run, std::vector<std::string> more) {
  more.insert(more.begin(), {"--search", "--json", "--seconds", "600"});  // however slow the machine is
  const auto result = run_process(plan_of(run, more));
  EXPECT_EQ(result.code, 0) << result.err;
  return nlohmann::json::parse(result.out);
}

TEST(PlanCommand, SearchesForTheFastestLayoutThatFits) {
  const SmallRun run(kLeaves, "epochs = 1\nmax_steps = 3\nglobal_batch = 8\n");
  const auto all = searched(run, {"--ranks", "4", "--machine", "cpu"});
  EXPECT_TRUE(all.at("complete"));
  std::set<std::string> names;
  double last = 0, smallest = 1e18;
  for (const auto& row : all.at("fitting")) {
    names.insert(row.at("name").get<std::string>());
    EXPECT_LE(last, row.at("step_seconds"));
    last = row.at("step_seconds");
    smallest = std::min(smallest, row.at("peak_bytes").get<double>());
  }
  EXPECT_TRUE(names.contains("dp=4") && names.contains("dp=2,tp=2")) << all.dump(1);
  // The model has one block and two heads.
  for (const auto& name : names) EXPECT_TRUE(name.find("pp=4") == name.npos && name.find("tp=4") == name.npos) << name;

  const auto little = searched(run, {"--ranks", "4", "--machine", "cpu", "--memory",
                                     std::to_string(static_cast<int>(std::ceil(smallest / 1024))) + "KiB"});
  ASSERT_FALSE(little.at("fitting").empty());
  for (const auto& row : little.at("fitting")) EXPECT_TRUE(row.at("fits"));
  for (const auto& row : little.at("too_large")) EXPECT_FALSE(row.at("fits"));
  const auto kept = searched(run, {"--ranks", "2", "--machine", "cpu", "--set", "train.micro_batch=2"});
  for (const auto& row : kept.at("fitting")) EXPECT_FALSE(row.at("settings").contains("train.micro_batch"));
  const auto given = searched(run, {"--ranks", "4", "--machine", "cpu", "--set", "parallel.tp=2"});
  ASSERT_FALSE(given.at("fitting").empty());
  for (const auto& row : given.at("fitting")) EXPECT_EQ(row.at("settings").at("parallel.tp"), "2") << row.dump();

  // The names are those of layouts, and what is printed is a section for the file.
  const auto text = run_process(plan_of(run, {"--search", "--ranks", "2", "--machine", "cpu", "--seconds", "600"}));
  EXPECT_EQ(count_of(text.out, "\n[parallel]\n"), 1) << text.out;
  for (const auto& row : kept.at("fitting")) {
    const auto name = row.at("name").get<std::string>();
    const auto again =
        run_process(plan_of(run, {"--layouts", name, "--machine", "cpu", "--json", "--set", "train.micro_batch=2"}));
    ASSERT_EQ(again.code, 0) << again.err;
    EXPECT_EQ(nlohmann::json::parse(again.out).at(0).at("peak_bytes"), row.at("peak_bytes")) << name;
  }
  expect_refusal(run_process(plan_of(run, {"--search", "--ranks", "2", "--memory", "1KiB", "--seconds", "600"})), 2,
                 "no layout of 2 ranks fits into");
}

TEST(PlanCommand, ARunTakesTheLayoutThatThePlanChoosesAndKeepsIt) {
  const SmallRun run(kLeaves + std::string("[parallel]\nplugin = \"auto\"\n"),
                     "epochs = 2\nmax_steps = 6\nglobal_batch = 8\nmicro_batch = \"auto\"\n");
  const auto first =
      run.train(2, {"--set", "train.epochs=1", "--set", "train.max_steps=3", "--set", "run.machine=cpu"});
  ASSERT_EQ(first.code, 0) << first.err;
  EXPECT_EQ(count_of(first.out, "chosen by the plan: dp="), 1) << first.out;
  const auto stored = content_of(run.dir() + "/config.toml");
  EXPECT_EQ(count_of(stored, "plugin = \"hybrid_parallel\""), 1) << stored;
  EXPECT_EQ(count_of(stored, "machine = \"cpu\""), 1) << "a name, and no path\n" << stored;
  const auto on = run.train(2, {"--set", "train.max_steps=6"});
  ASSERT_EQ(on.code, 0) << on.err;
  EXPECT_EQ(count_of(on.out, "chosen by the plan: as before"), 1) << on.out;
  // It is not for other ranks.
  const auto fewer = run.train(1, {"--set", "train.max_steps=8"});
  ASSERT_EQ(fewer.code, 0) << fewer.err;
  EXPECT_EQ(count_of(fewer.out, "chosen by the plan: dp=1"), 1) << fewer.out;
  // What the user sets stays.
  const auto given = run.train(2, {"--fresh", "--set", "parallel.tp=2"});
  ASSERT_EQ(given.code, 0) << given.err;
  EXPECT_EQ(count_of(given.out, "chosen by the plan: dp=1,tp=2"), 1) << given.out;
  // Only the size of the microbatches, in a layout of the user's.
  const auto micro = run.train(2, {"--fresh", "--set", "parallel.plugin=torch_ddp"});
  ASSERT_EQ(micro.code, 0) << micro.err;
  EXPECT_EQ(count_of(micro.out, "chosen by the plan: train.micro_batch="), 1) << micro.out;
  EXPECT_EQ(count_of(content_of(run.dir() + "/config.toml"), "plugin = \"torch_ddp\""), 1);
  // The user's other layout is no choice of the plan's.
  const auto other = run.train(2, {"--set", "parallel.plugin=hybrid_parallel", "--set", "parallel.tp=2", "--set",
                                   "train.epochs=3", "--set", "train.max_steps=9"});
  ASSERT_EQ(other.code, 0) << other.err;
  EXPECT_EQ(count_of(other.out, "tp 2"), 1) << other.out;
}

TEST(PlanCommand, CheckFindsAPlanThatIsWrong) {
  const SmallRun run;
  ASSERT_EQ(run.train(1).code, 0);
  const auto check = [&] {
    const auto result = run_process({TRIREME_COMMAND, "plan", "--check", run.dir(), "--json"});
    EXPECT_EQ(result.code, 0) << result.err;
    return nlohmann::json::parse(result.out).at(0);
  };
  EXPECT_NEAR(check().at("peak_bytes").at("error"), 0, 0.005);
  auto summary = json_of(run.dir() + "/summary.json");
  summary["plan"]["peak_bytes"] = 2 * summary["measured"]["peak_bytes"].get<double>();
  run.folder.write("run/summary.json", summary.dump());
  EXPECT_DOUBLE_EQ(check().at("peak_bytes").at("error"), 1);
  const auto table = run_process({TRIREME_COMMAND, "plan", "--check", run.dir()});
  EXPECT_EQ(count_of(table.out, "+100.00"), 1) << table.out;
  EXPECT_EQ(count_of(table.out, "\nmedian of the errors"), 1) << table.out;
}

// The forecast runs the plugin's own code: a buffer that lives too long and a message that is sent twice cost what they
// cost in the run. A plan that did not see them would be found.
TEST(PlanCommand, PlantedWasteIsPlannedAndMeasuredAlike) {
  const auto measured = [](const std::string& faults, bool is_planned) {
    SCOPED_TRACE(faults);
    const SmallRun run(kLeaves, "epochs = 1\nmax_steps = 3\nglobal_batch = 8\n");
    std::vector<std::string> settings{"parallel.plugin=" TRIREME_PLANTED};
    for (const auto* fault : {"keep", "twice", "hide"})
      if (faults.find(fault) != faults.npos) settings.push_back(std::string("plugin.planted.") + fault + "=true");
    train_well(run, 2, sets(settings));
    const auto check = run_process({TRIREME_COMMAND, "plan", "--check", run.dir(), "--json"});
    EXPECT_EQ(check.code, 0) << check.err;
    const auto row = nlohmann::json::parse(check.out).at(0);
    for (const auto* number : {"peak_bytes", "sent_bytes"})
      EXPECT_EQ(std::abs(row.at(number).at("error").get<double>()) < 0.005, is_planned) << row.dump();
    return row;
  };
  const auto of = [](const nlohmann::json& row, const char* number) {
    return row.at(number).at("measured").get<double>();
  };
  const auto plain = measured("", true), kept = measured("keep", true), twice = measured("twice", true);
  const double message = of(twice, "sent_bytes") - of(plain, "sent_bytes");  // a ring of 2 ranks sends all bytes, twice
  EXPECT_GT(message, 0.9 * of(plain, "sent_bytes"));
  EXPECT_EQ(of(kept, "sent_bytes"), of(plain, "sent_bytes"));
  EXPECT_NEAR(2 * (of(kept, "peak_bytes") - of(plain, "peak_bytes")), message, 0.01 * message);
  const auto hidden = measured("keep,twice,hide", false);
  EXPECT_LT(hidden.at("peak_bytes").at("error"), -0.05);
  EXPECT_NEAR(hidden.at("sent_bytes").at("error"), -message / of(twice, "sent_bytes"), 1e-9);
}

TEST(PlanCommand, MeasuresThisMachineForAPlan) {
  const SmallRun run;
  const auto file = run.folder.path() + "/machine.toml";
  const auto measured = run_process({TRIREME_COMMAND, "bench", "--machine", file, "--seconds", "1"});
  ASSERT_EQ(measured.code, 0) << measured.err;
  const auto result = run_process(plan_of(run, {"--machine", file, "--json"}));
  ASSERT_EQ(result.code, 0) << result.err;
  const auto row = nlohmann::json::parse(result.out).at(0);
  EXPECT_GT(row.at("step_seconds"), 0);
  const auto& time = row.at("time");
  EXPECT_DOUBLE_EQ(time.at("compute").get<double>() + time.at("data").get<double>(), row.at("step_seconds"))
      << "one rank waits for nobody";
  expect_refusal(run_process({TRIREME_COMMAND, "bench", "--machine", file, run.config}), 2, "remove CONFIG");
  expect_refusal(run_process({TRIREME_COMMAND, "bench", "--machine", "rtx-4090"}), 2, "the path of a file to write");
  expect_refusal(run_process({TRIREME_COMMAND, "bench", "--machine", run.dir() + "/none/m.toml"}), 2, "another file");
  expect_refusal(run_process({TRIREME_COMMAND, "bench"}), 2, "CONFIG is missing");
}

}  // namespace
}  // namespace trireme::tests
