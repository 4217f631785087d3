// Checkpoints that are saved in the background hold what those hold that are saved at once, byte for byte, although the
// training goes on.
#include <gtest/gtest.h>

#include "tests/parity/resume.h"

namespace trireme::tests {
namespace {

/// A model with running statistics, which change in forward passes.
const char* const kResnet = R"(
[run]
checkpoint_every = 2
keep_checkpoints = 99
[model]
name = "resnet"
depth = 18
width = 4
[data]
name = "leaves"
images = 60
image_size = 32
[train]
global_batch = 8
)";

TEST_F(Resume, BackgroundSavesHaveTheSameBytes) {
  const struct {
    const char *name, *config;
    int ranks;
    std::string keys;
    std::set<std::string> groups{"weights", "optimizer"};
  } layouts[]{
      {"one process", kConfig, 1, ""},
      {"data parallel, an average, bf16",
       kConfig,
       2,
       "--set train.ema_decay=0.9 --set train.precision=bf16 ",
       {"weights", "optimizer", "average"}},
      {"zero 2", kConfig, 2,
       "--set parallel.plugin=low_level_zero --set plugin.low_level_zero.stage=2 --set train.precision=fp16 "},
      {"gemini", kConfig, 2, "--set parallel.plugin=gemini --set plugin.gemini.chunk_config=1000 "},
      {"zero 3", kConfig, 2, "--set parallel.zero=3 "},
      {"tensor", kConfig, 2, "--set parallel.tp=2 "},
      {"pipeline", kConfig, 2, "--set parallel.pp=2 --set train.micro_batch=2 "},
      {"tensor and zero 1, small files", kConfig, 4,
       "--set parallel.tp=2 --set parallel.zero=1 --set run.checkpoint_shard_mb=1 "},
      {"buffers", kResnet, 2, ""},
  };
  for (const auto& [name, config, ranks, keys, groups] : layouts) {
    std::ofstream(root_ / "run.toml") << config;
    const auto all = keys + "--set run.checkpoint_every=2 --set run.keep_checkpoints=99 --set train.epochs=2 ";
    for (const std::string run : {"at-once", "background"})
      train(run, ranks, all + "--fresh" + (run == "background" ? " --set run.async_save=true" : ""));
    EXPECT_NE(log("background").find("\nsaves    in the background"), std::string::npos) << log("background");
    const auto steps = checkpoints("at-once");
    EXPECT_GE(steps.size(), 6U) << name;
    EXPECT_EQ(checkpoints("background"), steps) << name;
    for (const auto& step : steps) {
      std::map<std::string, std::string> files[2];
      int k = 0;
      for (const auto* run : {"at-once", "background"}) {
        for (const auto& entry : fs::directory_iterator(checkpoint(run, step)))
          files[k][entry.path().filename()] = bytes_of(entry.path());
        files[k].erase("config.toml");  // it has the key
        auto manifest = nlohmann::json::parse(files[k].at("manifest.json"));
        for (const auto& group : groups) EXPECT_TRUE(manifest.at("tensors").contains(group)) << name;
        manifest.at("files").erase("config.toml");
        files[k++]["manifest.json"] = manifest.dump();
      }
      EXPECT_TRUE(files[0] == files[1]) << name << ", " << step;
    }
    EXPECT_TRUE(bytes_of(model("at-once")) == bytes_of(model("background"))) << name;
    for (const auto* run : {"at-once", "background"}) fs::remove_all(root_ / run);
  }
}

}  // namespace
}  // namespace trireme::tests
