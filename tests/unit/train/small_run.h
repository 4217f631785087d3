// Small runs of this folder's tests: a ViT on drawn leaves, from a file's text and assignments like those of --set.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/resume/run_folder.h"
#include "core/train/run.h"
#include "trireme.h"

namespace trireme::train::testing_tools {

/// 42 of the 60 samples are for the training.
inline const std::string kModelAndData = R"([model]
hidden_size = 16
num_layers = 1
num_heads = 2
intermediate_size = 32
patch_size = 8
[data]
name = "leaves"
images = 60
image_size = 16
)";

/// 42 samples without the last 2: five steps an epoch.
inline const std::string kFiveSteps = kModelAndData + R"([run]
device = "cpu"
[train]
epochs = 1
global_batch = 8
drop_last = true
)";

inline RunSetup setup_of(const std::string& text, const std::vector<std::string>& assignments, int ranks = 1,
                         const std::string& weights = "", Kinds kinds = builtin_kinds()) {
  auto root = config::parse_text(text, "a.toml");
  for (const auto& assignment : assignments) config::apply_override(root, assignment);
  auto config = from_table(std::move(root), std::move(kinds));
  const LaunchInfo launch{.size = ranks, .local_size = ranks};
  return weights.empty() ? prepare_training(std::move(config), launch, Log(1))
                         : prepare_evaluation(std::move(config), launch, weights, Log(1));
}

/// What an action prints.
template <class Action>
std::string shown_by(Action&& action) {
  testing::internal::CaptureStdout();
  try {
    action();
  } catch (...) {
    testing::internal::GetCapturedStdout();
    throw;
  }
  return testing::internal::GetCapturedStdout();
}

/// Trains as `trireme train` does, on one rank, and returns what it prints.
inline std::string train_small(RunSetup prepared, RunOptions options = {}) {
  const auto world = comm::World::start(LaunchInfo{}, {.device = "cpu"});
  auto folder = open_run(prepared);
  return shown_by([&] { run_training(std::move(prepared), *world, std::move(folder), std::move(options)); });
}

}  // namespace trireme::train::testing_tools
