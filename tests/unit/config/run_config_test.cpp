// The whole file: sections, and the rules that span keys.
#include "core/config/run_config.h"

#include <fmt/format.h>

#include "core/config/document.h"
#include "tests/unit/config/config_test.h"

namespace trireme::config {
namespace {

using tests::message_of;

const char* const kGood = R"([run]
dir = "runs/a"
[model]
name = "vit"
size = "tiny"
[data]
path = "data/beans"
image_size = 64
[train]
epochs = 2
global_batch = 32
micro_batch = 8
[optimizer]
lr = 5e-4
weight_decay = 0.05
no_decay = ["bias"]
[schedule]
name = "cosine"
warmup_ratio = 0.1
[plugin.torch_ddp]
bucket_cap_mb = 25
)";

RunConfig parse(const std::string& text, const std::vector<std::string>& overrides = {}) {
  Table root = parse_text(text, "a.toml");
  for (const auto& assignment : overrides) apply_override(root, assignment);
  return from_table(std::move(root));
}

template <class T>
void expect_equal(const Fields<T>& fields, const T& a, const T& b) {
  for (const auto& field : fields.fields) EXPECT_EQ(field.get(&a), field.get(&b)) << fields.section << "." << field.key;
}

TEST(RunConfig, PathsBeginAtHomeAsInAShell) {
  const auto home = std::string(std::getenv("HOME") == nullptr ? "" : std::getenv("HOME"));
  const auto config = parse(kGood, {"run.dir=~/a", "data.path=~", "model.weights=~x/b"});
  EXPECT_EQ(config.run.dir, home.empty() ? "~/a" : home + "/a");
  EXPECT_EQ(config.data.path, home.empty() ? "~" : home);
  EXPECT_EQ(config.model.weights, "~x/b");
}

TEST(RunConfig, ReadsEverySection) {
  const auto config = parse(kGood, {"train.epochs=4", "model.depth=2"});
  EXPECT_EQ(config.run.dir, "runs/a");
  EXPECT_EQ(config.run.seed, 42);
  EXPECT_EQ(config.train.epochs, 4);
  EXPECT_EQ(config.train.micro_batch, 8);
  EXPECT_FALSE(config.train.max_steps.has_value());
  EXPECT_EQ(config.data.image_size, 64);
  EXPECT_EQ(config.optimizer.no_decay, std::vector<std::string>{"bias"});
  EXPECT_EQ(config.model_table().entries.size(), 2U);
  EXPECT_EQ(config.model_table().find("name"), nullptr);
  EXPECT_EQ(std::get<std::string>(config.model_table().find("size")->value), "tiny");
  ASSERT_NE(config.plugin_table("torch_ddp"), nullptr);
  EXPECT_EQ(config.plugin_table("gemini"), nullptr);
}

// Numbers that the engine multiplies must not overflow: each integer but a seed has an upper bound.
TEST(RunConfig, EveryCountIsBounded) {
  const auto integer = FieldValue(std::int64_t{}).index();
  const auto integers = FieldValue(std::vector<std::int64_t>{}).index();
  for (const auto* table : core_tables())
    for (const auto& field : table->fields) {
      if ((field.type != integer && field.type != integers) || field.key.find("seed") != std::string::npos) continue;
      ASSERT_TRUE(field.rules.max.has_value()) << table->section << "." << field.key;
      EXPECT_LE(*field.rules.max, 1e12) << table->section << "." << field.key;
    }
}

TEST(RunConfig, PrintedFileLoadsAsTheSame) {
  struct Case {
    std::string without;  // a line of the file that does not go with the overrides
    std::vector<std::string> overrides;
  };
  const std::vector<Case> cases{
      {"", {}},
      {"", {"optimizer.name=sgd", "optimizer.momentum=0.9", "optimizer.nesterov=true"}},
      {"path = \"data/beans\"\n",
       {"train.precision=fp16", "train.growth_interval=7", "train.max_steps=5", "data.name=leaves", "data.images=60"}},
      {"warmup_ratio = 0.1\n", {"schedule.name=multi_step", "schedule.milestones=[3,9]", "schedule.warmup_steps=2"}},
      {"", {"data.random_resized_crop=true", "data.crop_scale=[0.5, 1]"}},
  };
  for (const auto& [without, overrides] : cases) {
    auto text = std::string(kGood);
    text.erase(text.find(without), without.size());
    const auto config = parse(text, overrides);
    const auto printed = print(config);
    const auto back = parse(printed);
    expect_equal(run_fields(), back.run, config.run);
    expect_equal(model_fields(), back.model, config.model);
    expect_equal(data_fields(), back.data, config.data);
    expect_equal(train_fields(), back.train, config.train);
    expect_equal(optimizer_fields(), back.optimizer, config.optimizer);
    expect_equal(lr_schedule_fields(), back.lr_schedule, config.lr_schedule);
    expect_equal(parallel_fields(), back.parallel, config.parallel);
    EXPECT_EQ(print(back), printed);
    EXPECT_NE(printed.find("size = \"tiny\""), std::string::npos);
    EXPECT_NE(printed.find("[plugin.torch_ddp]\nbucket_cap_mb = 25"), std::string::npos);
  }
}

TEST(RunConfig, SaysWhichSectionOrKeyIsWrong) {
  const std::vector<std::pair<std::string, std::string>> cases{
      {"[trian]\nepochs = 1\n",
       "a.toml:1:2: no section [trian] (known: run, model, data, train, optimizer, schedule, parallel, plugin); did "
       "you "
       "mean \"train\"?"},
      {"epochs = 1\n", "a.toml:1:1: \"epochs\" is outside any section; it belongs in [train]"},
      {"foo = 1\n", "a.toml:1:1: \"foo\" is outside any section"},
      {"train = 1\n", "a.toml:1:1: train is a section; write [train] and its keys below"},
      {"[train]\nseed = 1\n", "a.toml:2:1: no key \"seed\" in [train]; it belongs in [run]"},
      {"[parallel]\nplugni = 'x'\n",
       "a.toml:2:1: no key \"plugni\" in [parallel]; did you mean \"plugin\"?  (trireme config --explain parallel)"},
      {"[plugin]\nbucket_cap_mb = 1\n",
       "a.toml:2:1: no key \"bucket_cap_mb\" in [plugin]; a plugin's options belong in its own section, "
       "[plugin.torch_ddp]"},
      {"[plugin.torch_dpp]\nbucket_cap_mb = 1\n",
       "a.toml:1:9: [plugin.torch_dpp] is not the section of the chosen plugin \"torch_ddp\"; did you mean "
       "\"torch_ddp\"?"},
      {"", "a.toml: [data] path: is required with name = \"image_folder\": the folder of the data set"},
      {"[data]\nname = 'tensors'\n",
       "a.toml:1:2: [data] path: is required with name = \"tensors\": the folder of the data set"},
      {"[model]\nname = 3\n",
       "a.toml:2:1: model.name = 3: must be a string, not 3; with quotes: name = \"3\"  (trireme config --explain "
       "model.name)"},
  };
  for (const auto& [text, expected] : cases) {
    const std::string whole = text.rfind("[plugin", 0) == 0 ? text + "[data]\npath = 'x'\n" : text;
    EXPECT_EQ(message_of([&] { parse(whole); }), expected);
  }
}

// What an override breaks, and the words that the message must have.
TEST(RunConfig, ChecksRulesThatSpanKeys) {
  struct Case {
    std::vector<std::string> set;
    std::string expected;
  };
  const std::vector<Case> cases{
      {{"train.micro_batch=64"}, "is more than global_batch = 32; set it to at most 32"},
      {{"schedule.warmup_steps=3"}, "; set only one of them"},
      {{"optimizer.momentum=0.9"}, "has no effect with name = \"hybrid_adam\"; remove it, or set name to sgd"},
      {{"optimizer.name=sgd", "optimizer.betas=[0.9, 0.99]"},
       "has no effect with name = \"sgd\"; remove it, or set name to hybrid_adam"},
      {{"optimizer.name=sgd", "optimizer.adamw=true"}, "has no effect with name = \"sgd\""},
      {{"optimizer.name=sgd", "optimizer.nesterov=true"}, "needs momentum above 0"},
      {{"optimizer.name=sgd", "optimizer.nesterov=true", "optimizer.momentum=0.9", "optimizer.dampening=0.1"},
       "needs dampening = 0, not 0.1"},
      {{"optimizer.name=sgd", "optimizer.dampening=0.1"}, "has no effect without momentum"},
      {{"optimizer.betas=[0.9]"}, "must have 2 elements, not 1"},
      {{"optimizer.betas=[0.9, 1]"}, "each number must be at least 0 and below 1"},
      {{"optimizer.freeze=[\"\"]"}, "holds an empty name"},
      {{"train.initial_scale=1024"}, "has no effect with precision = \"fp32\"; remove it, or set precision to fp16"},
      {{"train.precision=fp16", "train.min_scale=1e6"}, "breaks min_scale <= initial_scale"},
      {{"train.precision=fp16", "train.initial_scale=1e12"}, "breaks initial_scale <= max_scale"},
      {{"train.label_smoothing=1"}, "it must be at least 0 and below 1"},
      {{"train.max_steps=0"}, "it must be at least 1"},
      {{"train.global_batch=9223372036854775807"}, "it must be at least 1 and at most 1000000000"},
      {{"train.epochs=9223372036854775807"}, "it must be at least 1 and at most 1000000000"},
      {{"data.cache_mb=1e300"}, "it must be at least 0 and at most 1000000000"},
      {{"data.std=[1, 1, 0]"}, "each number must be above 0"},
      {{"data.mean=[1, 1]"}, "must have 3 elements, not 2"},
      {{"data.crop_scale=[0.5, 1]"}, "has no effect with random_resized_crop = false"},
      {{"data.random_resized_crop=true", "data.crop_scale=[1, 0.5]"}, "the smaller fraction first"},
      {{"data.name=tensors", "data.cache_mb=1"}, "has no effect with name = \"tensors\""},
      {{"data.name=leaves", "data.images=90"}, "has no effect, because data.path names leaves"},
      {{"data.name=leaves", "data.path=", "data.on_bad_sample=skip"}, "has no effect with leaves"},
      {{"data.images=100"}, "has no effect with name = \"image_folder\"; remove it, or set name to leaves"},
      {{"schedule.step_size=3"}, "has no effect with name = \"cosine\"; remove it, or set name to step"},
      {{"schedule.name=step"}, "is required with name = \"step\""},
      {{"schedule.name=multi_step"}, "are required with name = \"multi_step\""},
      {{"schedule.name=multi_step", "schedule.milestones=[3, 3]"}, "must be in ascending order, each step once"},
      {{"schedule.name=one_cycle"}, "warmup_ratio = 0.1: has no effect with name = \"one_cycle\""},
      {{"run.keep_checkpoints=0", "run.checkpoint_every=5"}, "has no effect, because keep_checkpoints = 0"},
      {{"run.dir="}, "is empty"},
      {{"run.seed=-1"}, "it must be at least 0"},
      {{"parallel.plugin="}, "is empty"},
  };
  for (const auto& test : cases) {
    const auto message = message_of([&] { parse(kGood, test.set); });
    EXPECT_NE(message.find(test.expected), std::string::npos) << test.set[0] << " gave: " << message;
    const bool has_place = message.rfind("--set ", 0) == 0 || message.rfind("a.toml:", 0) == 0;
    EXPECT_TRUE(has_place) << message;
  }
}

}  // namespace
}  // namespace trireme::config
