// Tuning of a run by [optimize], and `trireme tune`. Each test has a cache of its own.
#include <signal.h>

#include "tests/command/launch.h"
#include "tests/command/metrics.h"

namespace trireme::tests {
namespace {

const char* const kTrain = "epochs = 2\nglobal_batch = 8\n";

/// A run whose caches are in its folder.
struct TunedRun : SmallRun {
  TunedRun() : SmallRun(kLeaves, kTrain) {}
  [[nodiscard]] ProcessOptions options() const {
    return {.environment = {"XDG_CACHE_HOME=" + folder.path() + "/cache"}};
  }
  [[nodiscard]] ProcessResult tune(const Arguments& more = {}) const {
    Arguments arguments{TRIREME_COMMAND, "tune", config};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_process(arguments, options());
  }
  std::string train_tuned(int ranks, const Arguments& more) const {
    const auto result = train(ranks, more, options());
    EXPECT_EQ(result.code, 0) << result.err << result.out;
    return result.out;
  }
};

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(Tune, TheCommandKeepsWhatLaterRunsUse) {
  const TunedRun run;
  const auto none = run.train_tuned(1, sets({"optimize.tune=cached", "run.dir=" + run.folder.path() + "/none"}));
  EXPECT_TRUE(has(none, "tuning    none: nothing is stored for this model, layout and machine")) << none;
  const auto tuned = run.tune();
  ASSERT_EQ(tuned.code, 0) << tuned.err;
  EXPECT_TRUE(has(tuned.out, "candidate")) << tuned.out;
  EXPECT_TRUE(has(tuned.out, "norms=fused")) << tuned.out;
  EXPECT_TRUE(has(tuned.out, "best: ")) << tuned.out;
  EXPECT_FALSE(fs::exists(run.dir()));
  const auto used = run.train_tuned(1, sets({"optimize.tune=once"}));
  EXPECT_TRUE(has(used, "; as the cache says")) << used;
  const auto tuning = json_of(run.dir() + "/tuning.json");
  EXPECT_FALSE(tuning.at("candidates").empty());
  EXPECT_EQ(tuning.at("where").at("ranks on this machine"), 1);
  // Another layout has its own.
  const auto other = run.train_tuned(2, sets({"optimize.tune=cached", "run.dir=" + run.folder.path() + "/other"}));
  EXPECT_TRUE(has(other, "tuning    none: nothing is stored")) << other;
}

TEST(Tune, PrintsJson) {
  const TunedRun run;
  const auto result = run.tune(sets({"optimize.candidates=[\"norms\"]"}, {"--json", "--ranks", "2"}));
  ASSERT_EQ(result.code, 0) << result.err;
  const auto tuning = nlohmann::json::parse(result.out);
  ASSERT_EQ(tuning.at("candidates").size(), 1U) << result.out;
  const auto& candidate = tuning.at("candidates")[0];
  EXPECT_EQ(candidate.at("name"), "norms=fused");
  EXPECT_NE(candidate.at("numbers"), "wrong");
  EXPECT_FALSE(candidate.at("verdict").get<std::string>().empty());
  EXPECT_TRUE(tuning.at("notes").empty()) << result.out;
}

/// Steps that are long enough for a signal to come while they are tuned.
const Arguments kLonger = sets({"model.hidden_size=64", "model.num_layers=4", "data.images=1000", "data.image_size=64",
                                "train.global_batch=32", "train.epochs=100000"});

/// A signal in the middle of tuning ends the run before its first step. It then goes on with the bits of a run that was
/// not interrupted.
TEST(Tune, ASignalWhileItTunesCostsNothing) {
  for (const int ranks : {1, 2}) {
    SCOPED_TRACE(ranks);
    const TunedRun run;
    const auto in = [&](const std::string& name, std::initializer_list<std::string> more) {
      return sets({"run.dir=" + run.folder.path() + "/" + name}, sets(more, kLonger));
    };
    auto options = run.options();
    options.meanwhile = [&](pid_t process) {
      EXPECT_TRUE(wait_until([&] {
        std::ifstream file(run.folder.path() + "/stopped/metrics.jsonl");
        return has({std::istreambuf_iterator<char>(file), {}}, "\"tuning\"");
      }));
      kill(process, SIGTERM);
    };
    const auto stopped = run.train(ranks, in("stopped", {"optimize.tune=always"}), options);
    EXPECT_EQ(stopped.code, 128 + SIGTERM) << stopped.err << stopped.out;
    EXPECT_TRUE(has(stopped.out, "stopped   after step 0")) << stopped.out;
    for (const auto* name : {"stopped", "whole"})
      run.train_tuned(ranks, in(name, {"optimize.choices=[\"norms=fused\"]", "train.max_steps=8"}));
    const auto weights = [&](const std::string& name) {
      return content_of(run.folder.path() + "/" + name + "/model/model.safetensors");
    };
    EXPECT_EQ(weights("stopped"), weights("whole"));
  }
}

/// Of two runs, one tunes and the other is told what the first one has chosen.
TEST(Tune, ARunThatTunesHasTheBitsOfItsChoices) {
  const TunedRun run;
  const auto in = [&](const std::string& name, const std::string& how) {
    return sets({"run.dir=" + run.folder.path() + "/" + name, how, "data.images=16000", "train.max_steps=2600"});
  };
  const auto out = run.train_tuned(1, in("tuned", "optimize.tune=always"));
  EXPECT_TRUE(has(out, "tuning    ")) << out;
  EXPECT_TRUE(has(out, "; took ")) << out;
  const auto file = [&](const std::string& name) { return content_of(run.folder.path() + name); };
  const auto chosen = json_of(run.folder.path() + "/tuned/tuning.json").at("chosen");
  run.train_tuned(1, in("told", "optimize.choices=" + chosen.dump()));
  EXPECT_EQ(file("/tuned/model/model.safetensors"), file("/told/model/model.safetensors"));
}

TEST(Tune, ARunThatIsTooShortSaysSo) {
  const TunedRun run;
  const auto out = run.train_tuned(1, sets({"optimize.tune=always"}));
  EXPECT_TRUE(has(out, "tuning    none: 1 % of 12 steps is too little time")) << out;
}

TEST(Tune, WhatIsWrongIsRefusedBeforeAnythingStarts) {
  const TunedRun run;
  const auto refused = [&](const std::string& set, const std::string& what) {
    const auto result = run.train(1, sets({set}));
    EXPECT_EQ(result.code, 2);
    EXPECT_TRUE(has(result.err, what)) << result.err;
  };
  refused("optimize.tune=fast", "must be one of off, cached, once, always");
  refused("optimize.budget_s=5", "has no effect with tune = \"off\"");
  refused("optimize.choices=[\"treads=1\"]", "there is no switch \"treads\"");
  const auto result = run.tune(sets({"optimize.candidates=[\"treads\"]"}));
  EXPECT_EQ(result.code, 2);
  EXPECT_TRUE(has(result.err, "there is no switch \"treads\"")) << result.err;
  EXPECT_TRUE(has(result.err, "did you mean \"threads\"?")) << result.err;
}

}  // namespace
}  // namespace trireme::tests
