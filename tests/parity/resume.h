// The fixture of the tests that resume runs: it runs the command as a user would, and reads what it wrote.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "tests/ranks/device.h"

namespace trireme::tests {

namespace fs = std::filesystem;

// The run has dropout, flips, a ragged last batch, both moments, and ends of epochs before and after the resumed step.
inline const char* const kConfig = R"(
[run]
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

inline const std::string kConstant = "--set schedule.name=constant --set schedule.warmup_ratio=0.0 ";

class Resume : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    shared_ = fs::path(testing::TempDir()) / ("resume-shared-" + std::to_string(getpid()));
  }
  static void TearDownTestSuite() { fs::remove_all(shared_); }
  void SetUp() override {
    root_ = fs::path(testing::TempDir()) / ("resume-" + std::to_string(getpid()));
    fs::create_directories(root_);
    std::ofstream(root_ / "run.toml") << kConfig;
  }
  void TearDown() override { fs::remove_all(root_); }

  /// Returns the exit code; the output is in NAME.log.
  int try_train(const std::string& name, int ranks, const std::string& more) const {
    const auto command = std::string(TRIREME_COMMAND) + " train " + (root_ / "run.toml").string() + " --ranks " +
                         std::to_string(ranks) + " --set run.device=" + test_device() +
                         " --set run.dir=" + (root_ / name).string() + " " + more + " > " +
                         (root_ / (name + ".log")).string() + " 2>&1";
    const int status = std::system(command.c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  void train(const std::string& name, int ranks, const std::string& more) const {
    ASSERT_EQ(try_train(name, ranks, more), 0) << log(name);
  }
  /// A run of kConfig that is trained once for all tests, which only read it: its folder, which a caller may give where
  /// a run's name is expected.
  std::string once(int ranks, const std::string& more) const {
    const auto folder = shared_ / std::to_string(std::hash<std::string>()(std::to_string(ranks) + more));
    fs::create_directories(shared_);
    if (!fs::exists(folder)) train(folder, ranks, more);
    return folder;
  }
  std::string log(const std::string& name) const { return bytes_of(root_ / (name + ".log")); }
  nlohmann::json summary(const std::string& name) const {
    return nlohmann::json::parse(bytes_of(root_ / name / "summary.json"));
  }
  /// The steps in metrics.jsonl, in its order, of one kind of line ("eval" of one split).
  std::vector<int> steps_of(const std::string& name, const std::string& kind, const std::string& split = "") const {
    std::vector<int> steps;
    std::istringstream lines(bytes_of(root_ / name / "metrics.jsonl"));
    for (std::string text; std::getline(lines, text);) {
      const auto line = nlohmann::json::parse(text);
      if (line.value("weights", "") == "best") continue;  // of an earlier step, written at the end
      if (line.at("kind") == kind && line.value("split", "") == split) steps.push_back(line.at("step"));
    }
    return steps;
  }
  std::set<std::string> checkpoints(const std::string& name) const {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(root_ / name / "checkpoints"))
      names.insert(entry.path().filename());
    return names;
  }
  static std::string bytes_of(const fs::path& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  std::string model(const std::string& name) const { return (root_ / name / "model" / "model.safetensors").string(); }
  std::string checkpoint(const std::string& name, const std::string& step) const {
    return (root_ / name / "checkpoints" / step).string();
  }
  /// The bytes of the files in which the ranks wrote a group of tensors, by file.
  static std::map<std::string, std::string> tensors_in(const std::string& folder, const std::string& group) {
    std::map<std::string, std::string> out;
    for (const auto& entry : fs::directory_iterator(folder))
      if (const auto name = entry.path().filename().string(); name.starts_with(group + "-"))
        out[name] = bytes_of(entry.path());
    return out;
  }
  fs::path root_;
  static inline fs::path shared_;
};

}  // namespace trireme::tests
