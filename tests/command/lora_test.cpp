// Runs with [lora] as users start them: what they write, that any layout and every command reads it, and what is
// refused.
#include <cmath>

#include "tests/command/metrics.h"

namespace trireme::tests {
namespace {

using LoraArguments = std::vector<std::string>;

LoraArguments with_sets(const LoraArguments& assignments) {
  LoraArguments out;
  for (const auto& each : assignments) out.insert(out.end(), {"--set", each});
  return out;
}

/// Images in a folder and a model trained on them, which all tests share, and a test's runs that adapt it.
class Adapting : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    shared_ = std::make_unique<TemporaryFolder>();
    EXPECT_EQ(run_process({TRIREME_COMMAND, "data", "leaves", "--out", data(), "--images", "60", "--size", "16"}).code,
              0);
    shared_->write("run.toml", std::string("[run]\ndevice = \"cpu\"\n") + kModel +
                                   "[data]\nname = \"image_folder\"\nimage_size = 16\npath = \"" + data() +
                                   "\"\n[train]\nepochs = 1\nglobal_batch = 8\nprecision = \"fp64\"\n" +
                                   "[optimizer]\nlr = 1e-2\n");
    const auto trained = run_process({TRIREME_COMMAND, "train", config(), "--set", "run.dir=" + base()});
    EXPECT_EQ(trained.code, 0) << trained.err;
  }
  static void TearDownTestSuite() { shared_.reset(); }
  static std::string data() { return shared_->path() + "/leaves"; }
  static std::string base() { return shared_->path() + "/base"; }
  static std::string config() { return shared_->path() + "/run.toml"; }
  [[nodiscard]] std::string dir(const std::string& name) const { return folder_.path() + "/" + name; }
  /// The same with adapters on the base model.
  [[nodiscard]] ProcessResult adapt(const std::string& name, int ranks, LoraArguments set,
                                    const LoraArguments& more = {}) const {
    set.insert(set.begin(), {"model.weights=" + base(), "lora.rank=2", "lora.dropout=0.1"});
    LoraArguments arguments{TRIREME_COMMAND, "train", config(), "--ranks", std::to_string(ranks)};
    const auto sets = with_sets(set);
    arguments.insert(arguments.end(), sets.begin(), sets.end());
    arguments.insert(arguments.end(), {"--set", "run.dir=" + dir(name)});
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_process(arguments);
  }
  /// The scores of an evaluation, as printed.
  static std::string scores(const std::string& weights, const LoraArguments& more = {}) {
    LoraArguments arguments{TRIREME_COMMAND, "eval", weights};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const auto result = run_process(arguments);
    EXPECT_EQ(result.code, 0) << weights << ": " << result.err;
    std::string out;
    for (const auto& line : lines_of(result.out))
      if (const auto begin = line.find("loss "); begin != std::string::npos)
        out += line.substr(begin, line.find("   F1 ") - begin) + "\n";
    return out;
  }

  TemporaryFolder folder_;
  static inline std::unique_ptr<TemporaryFolder> shared_;
};

TEST_F(Adapting, WritesWhatPeftAndEveryCommandRead) {
  const auto result = adapt("a", 1, {"lora.merge=true"});
  ASSERT_EQ(result.code, 0) << result.err;
  // 6 layers: 2 x (16 + 16) for query, key, value and the attention's output, 2 x (16 + 32) for each half of the MLP.
  EXPECT_NE(result.out.find("parameters: 499 trained, "), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("r 2, alpha 8, dropout 0.1 on 6 layers: dense, key, query, value; trained in full: "
                            "classifier\n"),
            std::string::npos)
      << result.out;
  const auto adapter = json_of(dir("a") + "/model/adapter_config.json");
  EXPECT_EQ(adapter.at("peft_type"), "LORA");
  EXPECT_EQ(adapter.at("r"), 2);
  EXPECT_EQ(adapter.at("lora_alpha"), 8);
  EXPECT_EQ(adapter.at("target_modules").size(), 6U);
  EXPECT_EQ(adapter.at("modules_to_save"), nlohmann::json({"classifier"}));
  EXPECT_EQ(adapter.at("base_model_name_or_path"), base() + "/model");
  for (const auto* folder : {"/model", "/model-best"}) {
    EXPECT_TRUE(fs::exists(dir("a") + folder + "/adapter_model.safetensors"));
    EXPECT_FALSE(fs::exists(dir("a") + folder + "/model.safetensors"));
    EXPECT_FALSE(fs::exists(dir("a") + folder + "/config.json")) << "transformers would look for weights beside it";
  }
  const auto expected = scores(dir("a"));
  EXPECT_NE(expected, "");
  EXPECT_NE(expected, scores(base()));
  for (const auto* part : {"/model", "/model-best", "/model-merged", "/model/adapter_model.safetensors"})
    EXPECT_EQ(scores(dir("a") + part), expected) << part;
  EXPECT_EQ(scores(dir("a"), {"--ranks", "2", "--set", "parallel.tp=2"}), expected);
  // With a configuration that does not know of the adapters, or as ordinary weights.
  EXPECT_EQ(scores(dir("a") + "/model", {config()}), expected);
  EXPECT_EQ(scores(dir("a") + "/model-merged", {config()}), expected);
  const auto predicted = run_process({TRIREME_COMMAND, "predict", dir("a"), data() + "/validation", "--csv"});
  EXPECT_EQ(predicted.code, 0) << predicted.err;

  // A training may start from adapters, which then give the same loss as at the end of the run before.
  const auto next = adapt("b", 1, {"lora.weights=" + dir("a"), "optimizer.lr=0"});
  ASSERT_EQ(next.code, 0) << next.err;
  EXPECT_EQ(scores(dir("b")), expected);
}

// Modules that loaded adapters hold in full are part of the model, so its adapters hold them too, trained or not.
TEST_F(Adapting, KeepsTheModulesOfLoadedAdapters) {
  ASSERT_EQ(adapt("a", 1, {"lora.train=[\"classifier\", \"layernorm\"]"}).code, 0);
  const auto expected = scores(dir("a"));
  const auto saved = json_of(dir("a") + "/model/adapter_config.json").at("modules_to_save");
  EXPECT_EQ(saved, nlohmann::json({"vit.layernorm", "classifier"}));
  const struct {
    int ranks;
    LoraArguments layout;
  } rows[] = {{1, {}},
              {2, {"parallel.tp=2"}},
              {2, {"parallel.pp=2", "train.micro_batch=2"}},
              {2, {"parallel.plugin=gemini"}},
              {1, {"run.export=best"}}};
  for (const auto& [ranks, layout] : rows) {
    const auto name = "of_" + (layout.empty() ? "one" : layout[0].substr(layout[0].find('.') + 1));
    SCOPED_TRACE(name);
    auto set = layout;
    set.insert(set.end(), {"lora.weights=" + dir("a"), "lora.train=[]", "optimizer.lr=0"});
    const auto next = adapt(name, ranks, set);
    ASSERT_EQ(next.code, 0) << next.err;
    EXPECT_EQ(json_of(dir(name) + "/model/adapter_config.json").at("modules_to_save"), saved);
    for (const auto* part : {"/model", "/model-best"}) EXPECT_EQ(scores(dir(name) + part), expected) << part;
  }
}

// Adapters of PEFT that leave the head as it is are for the classes of the base model.
TEST_F(Adapting, WithoutAHeadHaveTheClassesOfTheBase) {
  ASSERT_EQ(adapt("a", 1, {"lora.train=[]"}).code, 0);
  fs::remove(dir("a") + "/model/model_config.json");
  const auto predicted = run_process({TRIREME_COMMAND, "predict", dir("a"), data() + "/validation", "--csv"});
  EXPECT_EQ(predicted.code, 0) << predicted.err;
}

TEST_F(Adapting, ResumesInAnotherLayout) {
  ASSERT_EQ(adapt("whole", 1, {"train.epochs=2"}).code, 0);
  const auto loss = json_of(dir("whole") + "/summary.json").at("final").at("validation_loss").get<double>();
  int number = 0;
  for (const LoraArguments& layout :
       {LoraArguments{"parallel.tp=2"}, {"parallel.pp=2", "train.micro_batch=2"}, {"parallel.plugin=gemini"}}) {
    const auto name = "parts_" + std::to_string(++number);
    ASSERT_EQ(adapt(name, 1, {}).code, 0);
    auto set = layout;
    set.push_back("train.epochs=2");
    const auto resumed = adapt(name, 2, set, {"--resume", "must"});
    ASSERT_EQ(resumed.code, 0) << resumed.err;
    EXPECT_NEAR(json_of(dir(name) + "/summary.json").at("final").at("validation_loss").get<double>(), loss,
                1e-9 * std::abs(loss))
        << layout[0];
    expect_refusal(adapt(name, 1, {"train.epochs=3", "lora.alpha=3"}, {"--resume", "must"}), 7,
                   "lora.alpha = 3.0 (it was 8.0)");
    // What adapters of another run hold would be in this one's exports.
    expect_refusal(adapt(name, 1, {"train.epochs=3", "lora.weights=" + dir("whole")}, {"--resume", "must"}), 7,
                   "lora.weights = ");
  }
}

}  // namespace
}  // namespace trireme::tests
