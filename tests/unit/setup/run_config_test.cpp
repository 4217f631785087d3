// The whole file: sections, and the rules that span keys.
#include "core/setup/run_config.h"

#include <fmt/format.h>

#include "core/config/document.h"
#include "tests/unit/config/config_test.h"
#include "trireme.h"

namespace trireme::train {
namespace {

const char* const kWhole = R"([run]
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
  auto root = config::parse_text(text, "a.toml");
  for (const auto& assignment : overrides) config::apply_override(root, assignment);
  auto config = from_table(std::move(root), builtin_kinds());
  require_data(config);
  return config;
}

/// The value of one of the chosen kind's keys, as TOML.
template <class F>
std::string own(const F& factory, const std::string& key) {
  const auto* field = factory.fields().find(key);
  return field == nullptr ? "no such key" : config::to_toml(field->get(factory.options()));
}

template <class F>
void expect_same_choice(const F& a, const F& b) {
  EXPECT_EQ(a.name(), b.name());
  for (const auto& field : a.fields().fields) EXPECT_EQ(own(a, field.key), own(b, field.key)) << field.key;
}

template <class T>
void expect_equal(const Fields<T>& fields, const T& a, const T& b) {
  for (const auto& field : fields.fields) EXPECT_EQ(field.get(&a), field.get(&b)) << fields.section << "." << field.key;
}

TEST(RunConfig, TildeExpandsToHomeAsInAShell) {
  const auto home_dir = std::string(std::getenv("HOME") == nullptr ? "" : std::getenv("HOME"));
  const auto config = parse(kWhole, {"run.dir=~/a", "data.path=~", "model.weights=~x/b", "parallel.plugin=~/p.so"});
  EXPECT_EQ(config.run.dir, home_dir.empty() ? "~/a" : home_dir + "/a");
  EXPECT_EQ(own(config.data.source, "path"), fmt::format("\"{}\"", home_dir.empty() ? "~" : home_dir));
  EXPECT_EQ(config.model.weights, "~x/b");
  EXPECT_EQ(config.parallel.plugin, home_dir.empty() ? "~/p.so" : home_dir + "/p.so");
}

TEST(RunConfig, ReadsEverySection) {
  const auto config = parse(kWhole, {"train.epochs=4", "model.num_layers=2"});
  EXPECT_EQ(config.run.dir, "runs/a");
  EXPECT_EQ(config.run.seed, 42);
  EXPECT_EQ(config.train.epochs, 4);
  EXPECT_EQ(config.train.micro_batch, 8);
  EXPECT_FALSE(config.train.max_steps.has_value());
  EXPECT_EQ(config.data.source.name(), "image_folder");
  EXPECT_EQ(own(config.data.source, "image_size"), "64");
  EXPECT_EQ(config.schedule.curve.name(), "cosine");
  EXPECT_EQ(config.optimizer.no_decay, std::vector<std::string>{"bias"});
  EXPECT_EQ(config.model_keys.entries.size(), 2U);
  EXPECT_EQ(config.model_keys.find("name"), nullptr);
  EXPECT_EQ(std::get<std::string>(config.model_keys.find("size")->value), "tiny");
  ASSERT_NE(config.plugin_table("torch_ddp"), nullptr);
  EXPECT_EQ(config.plugin_table("gemini"), nullptr);
}

// Numbers that the engine multiplies must not overflow: each integer but a seed has an upper bound.
TEST(RunConfig, EveryCountIsBounded) {
  const auto integer = FieldValue(std::int64_t{}).index();
  const auto integers = FieldValue(std::vector<std::int64_t>{}).index();
  auto tables = section_tables();
  const auto kinds = builtin_kinds();
  const auto of_kinds = own_tables(kinds);
  tables.insert(tables.end(), of_kinds.begin(), of_kinds.end());
  for (const auto* table : tables)
    for (const auto& field : table->fields) {
      if ((field.type != integer && field.type != integers) || field.key.find("seed") != std::string::npos) continue;
      ASSERT_TRUE(field.rules.max.has_value()) << table->section << "." << field.key;
      EXPECT_LE(*field.rules.max, 1e13) << table->section << "." << field.key;
    }
}

TEST(RunConfig, PrintedFileLoadsAsTheSame) {
  struct Case {
    std::string without;  // a line of the file that conflicts with the overrides
    std::vector<std::string> overrides;
  };
  const std::vector<Case> cases{
      {"", {}},
      {"", {"optimizer.name=sgd", "optimizer.momentum=0.9", "optimizer.nesterov=true"}},
      {"path = \"data/beans\"\n",
       {"train.precision=fp16", "train.growth_interval=7", "train.max_steps=5", "data.name=leaves", "data.images=60"}},
      {"warmup_ratio = 0.1\n", {"schedule.name=multi_step", "schedule.milestones=[3,9]", "schedule.warmup_steps=2"}},
      {"", {"data.random_resized_crop=true", "data.crop_scale=[0.5, 1]"}},
      {"", {"lora.rank=4", "lora.target=[\"query\", \"value\"]", "lora.train=[]", "lora.merge=true"}},
  };
  for (const auto& [without, overrides] : cases) {
    auto text = std::string(kWhole);
    text.erase(text.find(without), without.size());
    const auto config = parse(text, overrides);
    const auto printed = print(config, nullptr, "", "[plugin.torch_ddp]\nbucket_cap_mb = 25\n");
    const auto back = parse(printed);
    expect_equal(run_fields(), back.run, config.run);
    expect_equal(model_fields(), back.model, config.model);
    ASSERT_EQ(back.lora.has_value(), config.lora.has_value());
    if (config.lora) expect_equal(lora_fields(), *back.lora, *config.lora);
    expect_equal(data_fields(), back.data, config.data);
    expect_equal(train_section_fields(), back.train, config.train);
    expect_equal(optimizer_section_fields(), back.optimizer, config.optimizer);
    expect_equal(schedule_section_fields(), back.schedule, config.schedule);
    expect_same_choice(back.data.source, config.data.source);
    expect_same_choice(back.optimizer.method, config.optimizer.method);
    expect_same_choice(back.schedule.curve, config.schedule.curve);
    expect_equal(parallel_fields(), back.parallel, config.parallel);
    EXPECT_EQ(print(back, nullptr, "", "[plugin.torch_ddp]\nbucket_cap_mb = 25\n"), printed);
    EXPECT_NE(printed.find("size = \"tiny\""), std::string::npos);
  }
}

TEST(RunConfig, ReadsFurtherData) {
  const auto config = parse(
      "[data]\nname = 'leaves'\nweight = 3\n[[data.mix]]\nimages = 30\n[[data.mix]]\nname = 'image_folder'\n"
      "path = '/x'\nweight = 2\n");
  for (const auto& of : {config, parse(print(config, nullptr, "", ""))}) {
    EXPECT_EQ(of.data.weight, 3);
    ASSERT_EQ(of.data.mix.size(), 2U);
    const auto &leaves = of.data.mix[0], &folder = of.data.mix[1];
    EXPECT_EQ(leaves.weight, 1);
    EXPECT_EQ(leaves.source.name(), "leaves");
    EXPECT_EQ(own(leaves.source, "images"), "30");
    EXPECT_EQ(folder.weight, 2);
    EXPECT_EQ(own(folder.source, "path"), "\"/x\"");
  }
}

TEST(RunConfig, ReadsGroupsOfParameters) {
  const std::string text = "[data]\nname = 'leaves'\n[optimizer]\nlr = 0.5\n";
  const std::string groups =
      "[[optimizer.group]]\nparameters = ['classifier']\nlr_scale = 10\n[[optimizer.group]]\nparameters = ['a', "
      "'b']\nweight_decay = 0.25\n";
  const auto config = parse(text + groups);
  const auto expect_groups = [](const RunConfig& of) {
    ASSERT_EQ(of.optimizer.groups.size(), 2U);
    EXPECT_EQ(of.optimizer.groups[0].parameters, std::vector<std::string>{"classifier"});
    EXPECT_EQ(of.optimizer.groups[0].lr_scale, 10);
    EXPECT_FALSE(of.optimizer.groups[0].weight_decay.has_value());
    EXPECT_EQ(of.optimizer.groups[1].parameters, (std::vector<std::string>{"a", "b"}));
    EXPECT_EQ(of.optimizer.groups[1].weight_decay, 0.25);
  };
  expect_groups(config);
  expect_groups(parse(print(config, nullptr, "", "")));
  expect_groups(parse(config::print_table(config.root)));
  const std::vector<std::pair<std::string, std::string>> wrong{
      {groups + "lr_scael = 1\n", "a.toml:11:1: no key \"lr_scael\" in [optimizer.group]; did you mean \"lr_scale\"?"},
      {"[[optimizer.group]]\nlr_scale = 2\n", "a.toml:5:1: [optimizer.group] parameters: is required"},
      {"[optimizer.group]\nlr_scale = 2\n",
       "[optimizer.group] may be repeated, so it has two brackets: [[optimizer.group]]"},
      {"[[optimizer.gruop]]\nlr_scale = 2\n",
       "no section [[optimizer.gruop]]; groups of parameters are [[optimizer.group]]"},
      {"group = [{lr_scale = 2}]\n",
       "is a list of inline tables; write each as a block below a line [[optimizer.group]]"},
      {"[[train]]\nepochs = 2\n", "[[train]] is not a section that repeats; write [train]"},
      {"[[plugin.gemini]]\nx = 2\n", "[[plugin.gemini]] is not a section that repeats; write [plugin.gemini]"},
  };
  for (const auto& [more, expected] : wrong) {
    const auto message = tests::message_of([&] { parse(text + more); });
    EXPECT_NE(message.find(expected), std::string::npos) << message;
  }
  const auto message = tests::message_of([&] { parse(text + groups, {"optimizer.group.lr_scale=3"}); });
  EXPECT_NE(message.find("[[optimizer.group]] can be written several times; change it in the file"), std::string::npos)
      << message;
}

TEST(RunConfig, SaysWhichSectionOrKeyIsWrong) {
  const std::vector<std::pair<std::string, std::string>> cases{
      {"[trian]\nepochs = 1\n",
       "a.toml:1:2: no section [trian] (known: run, model, lora, data, train, optimizer, schedule, optimize, comm, "
       "parallel, plugin); "
       "did "
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
    EXPECT_EQ(tests::message_of([&] { parse(whole); }), expected);
  }
}

// Overrides that break a rule, and the text that the message must contain.
TEST(RunConfig, ChecksRulesThatSpanKeys) {
  struct Case {
    std::vector<std::string> set;
    std::string expected;
  };
  const std::vector<Case> cases{
      {{"train.micro_batch=64"}, "is more than global_batch = 32; set it to at most 32"},
      {{"schedule.warmup_steps=3"}, "; set only one of them"},
      {{"optimizer.momentum=0.9"}, "has no effect with name = \"hybrid_adam\"; remove it, or set name to lars or sgd"},
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
      {{"train.task=classification", "train.label_smoothing=1"}, "it must be at least 0 and below 1"},
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
      {{"data.images=100"},
       "has no effect with name = \"image_folder\"; remove it, or set name to image_table or leaves"},
      {{"schedule.step_size=3"}, "has no effect with name = \"cosine\"; remove it, or set name to step"},
      {{"schedule.name=step"}, "is required with name = \"step\""},
      {{"schedule.name=multi_step"}, "are required with name = \"multi_step\""},
      {{"schedule.name=multi_step", "schedule.milestones=[3, 3]"}, "must be in ascending order, each step once"},
      {{"train.label_smoothing=0.1", "train.task=regression"},
       "has no effect with task = \"regression\"; remove it, or set task to causal_lm or classification or "
       "masked_lm or multi_label"},
      {{"train.task=regresion"},
       "no task \"regresion\" (known: causal_lm, classification, masked_lm, multi_label, "
       "regression); did you mean \"regression\"?"},
      {{"train.topc=3"}, "no key \"topc\" in [train]; did you mean \"topk\"?"},
      {{"optimizer.momentun=0.9"}, "no key \"momentun\" in [optimizer]"},
      {{"data.name=leave"},
       "must be one of chat, cifar10, cifar100, image_folder, image_table, leaves, mnist, tar_shards, tensors, text, "
       "text_classification; "
       "did you mean \"leaves\"?"},
      {{"run.keep_checkpoints=0", "run.checkpoint_every=5"}, "has no effect, because keep_checkpoints = 0"},
      {{"run.dir="}, "is empty"},
      {{"run.seed=-1"}, "it must be at least 0"},
      {{"parallel.plugin="}, "is empty"},
  };
  for (const auto& test : cases) {
    const auto message = tests::message_of([&] { parse(kWhole, test.set); });
    EXPECT_NE(message.find(test.expected), std::string::npos) << test.set[0] << " gave: " << message;
    const bool has_place = message.rfind("--set ", 0) == 0 || message.rfind("a.toml:", 0) == 0;
    EXPECT_TRUE(has_place) << message;
  }
}

}  // namespace
}  // namespace trireme::train
