// What prepare() refuses before any rank is connected and any folder is touched, with the place in the user's file.
#include "core/train/prepare.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "models/registry.h"
#include "tests/unit/data/folder.h"

namespace trireme::train {
namespace {

using data::testing_tools::bytes_of;
using data::testing_tools::Folder;
using data::testing_tools::message_of;

const char* const kGood = R"([model]
hidden_size = 16
num_layers = 1
num_heads = 2
intermediate_size = 32
patch_size = 8
[data]
name = "leaves"
images = 60
image_size = 16
[train]
epochs = 2
global_batch = 8
[optimizer]
weight_decay = 0.1
[schedule]
name = "cosine"
)";

Prepared prepared(const std::string& text, const std::vector<std::string>& overrides, int ranks = 1,
                  const std::string& weights = "") {
  auto root = config::parse_text(text, "a.toml");
  for (const auto& assignment : overrides) config::apply_override(root, assignment);
  comm::LaunchInfo info;
  info.size = ranks;
  return prepare(config::from_table(std::move(root)), info, models::all_models(), weights, Log(1));
}

TEST(Prepare, RefusesWhatTheTrainingCouldNotDo) {
  const struct {
    std::vector<std::string> set;
    const char* says;
  } cases[] = {
      {{"optimizer.no_decay=[\"bais\"]"},
       "--set optimizer.no_decay=[\"bais\"]: \"bais\" matches no parameter; did you mean \"bias\"?"},
      {{"optimizer.freeze=[\"encodr\"]"}, "\"encodr\" matches no parameter; did you mean \"encoder\"?"},
      {{"optimizer.freeze=[\"*\"]"}, "* matches all 24 parameters; nothing is left to train"},
      {{"optimizer.no_decay=[\"bias\"]", "optimizer.weight_decay=0"},
       "changes nothing while optimizer.weight_decay is 0"},
      {{"schedule.warmup_steps=13"}, "asks for 13 steps of warm-up, and the training has 12; lower it"},
      {{"schedule.name=multi_step", "schedule.warmup_steps=5", "schedule.milestones=[4]"},
       "4 lies before the first full-rate step"},
  };
  for (const auto& c : cases) {
    const auto message = message_of<ConfigError>([&] { prepared(kGood, c.set); });
    EXPECT_NE(message.find(c.says), std::string::npos) << message;
    EXPECT_EQ(message.rfind("--set ", 0), 0U) << message;
  }
  auto text = std::string(kGood);
  text.replace(text.find("weight_decay = 0.1"), 18, "weight_decay = 0.1\nno_decay = [\"bais\"]");
  EXPECT_EQ(message_of<ConfigError>([&] { prepared(text, {}); }),
            "a.toml:16:1: optimizer.no_decay = [\"bais\"]: \"bais\" matches no parameter; did you mean \"bias\"?");
}

TEST(Prepare, CountsTheStepsOfTheTraining) {
  EXPECT_EQ(prepared(kGood, {}).total_steps, 12);  // 42 samples of 60
  EXPECT_EQ(prepared(kGood, {"train.drop_last=true"}).total_steps, 10);
  EXPECT_EQ(prepared(kGood, {"train.max_steps=7"}).total_steps, 7);
  EXPECT_EQ(prepared(kGood, {"schedule.warmup_steps=12"}).total_steps, 12);
}

// The same file runs on more ranks: a microbatch is then at most a rank's share.
TEST(Prepare, AMicrobatchIsAtMostARanksShare) {
  EXPECT_EQ(prepared(kGood, {"train.micro_batch=8"}).micro_batch, 8);
  EXPECT_EQ(prepared(kGood, {"train.micro_batch=8"}, 3).micro_batch, 3);
  EXPECT_EQ(prepared(kGood, {}, 3).micro_batch, 3);
}

// Weights that are evaluated: their classes must be the data's (angular_spots, healthy, rust).
TEST(Prepare, AModelIsEvaluatedOnTheClassesItKnows) {
  const auto good = prepared(kGood, {});
  auto stored = good.kind->to_hf(good.model_options.get());
  const auto says = [&](const std::vector<std::string>& names) {
    stored["id2label"] = nlohmann::json::object();
    for (std::size_t i = 0; i < names.size(); ++i) stored["id2label"][std::to_string(i)] = names[i];
    const Folder folder;
    folder.write("config.json", stored.dump());
    folder.write("model.safetensors", "");  // not read here
    return message_of<ConfigError>([&] { prepared(kGood, {}, 1, folder.path()); });
  };
  EXPECT_EQ(says({"angular_spots", "healthy", "rust"}), "no error");
  EXPECT_EQ(says({"LABEL_0", "LABEL_1", "LABEL_2"}), "no error");
  for (const auto& names : {std::vector<std::string>{"healthy", "angular_spots", "rust"}, {"a", "b", "c", "d"}}) {
    const auto message = says(names);
    EXPECT_NE(message.find("tells apart " + names[0]), std::string::npos) << message;
    EXPECT_NE(message.find("angular_spots, healthy, rust"), std::string::npos) << message;
  }
}

TEST(Prepare, MeanAndStdAreForPixelsInBytes) {
  const auto file = [](const char* dtype, std::size_t bytes) {
    return data::testing_tools::safetensors({{"pixel_values", dtype, "8,3,8,8", std::string(8 * 192 * bytes, '\0')},
                                             {"labels", "I64", "8", bytes_of(std::vector<std::int64_t>(8, 1))}});
  };
  for (const bool bytes : {true, false}) {
    const Folder folder;
    for (const auto* split : {"train", "validation"})
      folder.write(std::string(split) + ".safetensors", bytes ? file("U8", 1) : file("F32", 4));
    auto text = std::string(kGood);
    text.replace(text.find("images = 60\nimage_size = 16\n"), 28, "");
    for (const std::string set : {"data.mean=[0.4, 0.5, 0.6]", "data.std=[1, 1, 1]", "data.mean=[0.5, 0.5, 0.5]"}) {
      const auto message = message_of<ConfigError>([&] {
        prepared(text, {"data.name=tensors", "data.path=" + folder.path(), set});
      });
      const bool refused = !bytes && set.find("0.5, 0.5, 0.5") == std::string::npos;
      EXPECT_EQ(message.rfind("--set " + set + ": changes nothing: the pixel_values in " + folder.path(), 0) == 0,
                refused)
          << message;
      if (!refused) {
        EXPECT_EQ(message, "no error");
      }
    }
  }
}

}  // namespace
}  // namespace trireme::train
