// Contract C8: a resumed run equals one that was never stopped, bit for bit in the same layout and within C1's bound in
// another. Runs the command as a user would, and compares what it wrote.
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

#include "core/checkpoint/safetensors.h"

namespace trireme::tests {
namespace {

namespace fs = std::filesystem;

// Dropout, flips, a ragged last batch, momentum in both moments, an epoch's end on both sides of the cut.
const char* const kConfig = R"(
[run]
device = "cpu"
checkpoint_every = 4
keep_checkpoints = 9
[model]
name = "vit"
hidden_size = 24
num_layers = 2
num_heads = 3
intermediate_size = 48
patch_size = 8
dropout = 0.1
[data]
name = "leaves"
images = 60
image_size = 16
flip = true
[train]
epochs = 3
global_batch = 8
max_norm = 1.0
[optimizer]
weight_decay = 0.05
[schedule]
name = "cosine"
warmup_ratio = 0.2
)";

class Resume : public testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::path(testing::TempDir()) / ("resume-" + std::to_string(getpid()));
    fs::create_directories(root_);
    std::ofstream(root_ / "run.toml") << kConfig;
  }
  void TearDown() override { fs::remove_all(root_); }

  void train(const std::string& name, int ranks, const std::string& more) const {
    const auto command = std::string(TRIREME_COMMAND) + " train " + (root_ / "run.toml").string() + " --ranks " +
                         std::to_string(ranks) + " --set run.dir=" + (root_ / name).string() + " " + more + " > " +
                         (root_ / (name + ".log")).string() + " 2>&1";
    ASSERT_EQ(std::system(command.c_str()), 0) << bytes_of(root_ / (name + ".log"));
  }
  static std::string bytes_of(const fs::path& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  std::string model(const std::string& name) const { return (root_ / name / "model" / "model.safetensors").string(); }
  std::string checkpoint(const std::string& name, const std::string& step) const {
    return (root_ / name / "checkpoints" / step).string();
  }
  fs::path root_;
};

TEST_F(Resume, SameLayoutBitForBit) {
  train("whole", 2, "");
  // In the middle of an epoch of 6 steps, and at the end of one.
  for (const std::string step : {"step-00000004", "step-00000006"}) {
    train("from-" + step, 2, "--resume " + checkpoint("whole", step));
    EXPECT_TRUE(bytes_of(model("whole")) == bytes_of(model("from-" + step))) << "resumed from " << step;
  }
  // Stopped by max_steps, then taken up by "auto" in its own folder. The schedule spans the shorter run, so both have
  // it.
  train("stopped", 2, "--set schedule.name=constant --set schedule.warmup_ratio=0.0 --set train.max_steps=7");
  train("stopped", 2, "--set schedule.name=constant --set schedule.warmup_ratio=0.0 --resume auto");
  train("constant", 2, "--set schedule.name=constant --set schedule.warmup_ratio=0.0");
  EXPECT_TRUE(bytes_of(model("constant")) == bytes_of(model("stopped")));
}

TEST_F(Resume, AnotherLayoutWithinTheBound) {
  const std::string fp64 = "--set train.precision=fp64 ";
  train("whole", 2, fp64);
  const checkpoint::SafeTensors expected(model("whole"));
  for (const int ranks : {1, 3}) {
    const auto name = "on-" + std::to_string(ranks);
    train(name, ranks, fp64 + "--set train.micro_batch=1 --resume " + checkpoint("whole", "step-00000004"));
    const checkpoint::SafeTensors got(model(name));
    ASSERT_EQ(got.tensors().size(), expected.tensors().size());
    for (const auto& [tensor, info] : expected.tensors()) {
      const auto reference = expected.read(tensor);
      const double difference = (got.read(tensor) - reference).norm().item<double>();
      // A bias without gradient stays near zero: its last bits are the optimizer's noise.
      EXPECT_LE(difference, 1e-9 * std::max(reference.norm().item<double>(), 1e-2)) << tensor << " on " << ranks;
    }
  }
}

}  // namespace
}  // namespace trireme::tests
