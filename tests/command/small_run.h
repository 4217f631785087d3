// A small training for tests of failures: a folder with run.toml, and checks of its result.
#pragma once

#include <signal.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "tests/command/refusal.h"

namespace trireme::tests {

namespace fs = std::filesystem;

inline const char* const kModel =
    "[model]\nname = \"vit\"\nhidden_size = 16\nnum_layers = 1\nnum_heads = 2\nintermediate_size = 32\npatch_size = "
    "8\n";
inline const char* const kLeaves = "[data]\nname = \"leaves\"\nimages = 60\nimage_size = 16\n";
/// So many that the first epoch, at whose end a run saves, does not end within a test.
inline const char* const kManyLeaves = "[data]\nname = \"leaves\"\nimages = 60000\nimage_size = 16\n";

// A temporary folder with run.toml and the files of its run.
class SmallRun {
 public:
  explicit SmallRun(const std::string& data = kLeaves, const std::string& train = "epochs = 1\nglobal_batch = 8\n") {
    config = folder.write("run.toml", "[run]\ndir = \"" + dir() + "\"\ndevice = \"cpu\"\n" + std::string(kModel) +
                                          data + "[train]\n" + train);
  }
  [[nodiscard]] std::string dir() const { return folder.path() + "/run"; }
  [[nodiscard]] ProcessResult train(int ranks, std::vector<std::string> more = {},
                                    const ProcessOptions& options = {}) const {
    std::vector<std::string> arguments{TRIREME_COMMAND, "train", config};
    if (ranks > 1) arguments.insert(arguments.end(), {"--ranks", std::to_string(ranks)});
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_process(arguments, options);
  }
  // Expects that weights and checkpoints are complete or absent.
  void expect_nothing_half_written() const {
    EXPECT_FALSE(fs::exists(dir() + "/model"));
    EXPECT_FALSE(fs::exists(dir() + "/summary.json"));
    if (!fs::exists(dir())) return;
    for (const auto& entry : fs::recursive_directory_iterator(dir()))
      EXPECT_EQ(entry.path().filename().string().find("tmp"), std::string::npos) << entry.path();
  }
  // Waits until that many steps are recorded, with `restarted` also a restart. Ranks that start without a checkpoint
  // begin the file anew.
  void wait_for_steps(int steps = 1, bool restarted = false) const {
    const auto are_done = [&] {
      std::ifstream file(dir() + "/metrics.jsonl");
      int left = steps;
      bool is_begun = !restarted;
      for (std::string line; left > 0 && std::getline(file, line);) {
        is_begun = is_begun || line.find("\"restart\":{") != std::string::npos;
        if (line.find("\"kind\":\"step\"") != std::string::npos) --left;
      }
      return is_begun && left <= 0;
    };
    EXPECT_TRUE(wait_until(are_done, 120)) << "no " << steps << " steps within 2 minutes";
  }
  [[nodiscard]] std::vector<pid_t> ranks() const { return ranks_with(config); }
  // Expects that no process of this run outlives it, but for the time that an end takes on a loaded machine.
  void expect_all_gone() const {
    (void)wait_until([this] { return processes_with(config).empty(); });
    for (const pid_t id : processes_with(config)) {
      ADD_FAILURE() << "process " << id << " is still running";
      kill(id, SIGKILL);
    }
  }

  TemporaryFolder folder;
  std::string config;
};

using Arguments = std::vector<std::string>;

inline Arguments sets(const std::vector<std::string>& assignments, Arguments arguments = {}) {
  for (const auto& assignment : assignments) arguments.insert(arguments.end(), {"--set", assignment});
  return arguments;
}

/// Of 3 epochs in batches of 8: the steps of the last one are so large that its scores are worse than the earlier ones.
inline const Arguments kSpoilt = sets({"schedule.name=multi_step", "schedule.milestones=[12]", "schedule.gamma=500"});

/// Trains, and returns what the run printed.
inline std::string train_well(const SmallRun& run, int ranks, const Arguments& arguments = {}) {
  const auto result = run.train(ranks, arguments);
  EXPECT_EQ(result.code, 0) << result.err << result.out;
  return result.out;
}

/// A run of one rank on the leaves.
struct TrainedRun : SmallRun {
  explicit TrainedRun(const std::string& train = "epochs = 1\nglobal_batch = 8\n") : SmallRun(kLeaves, train) {
    train_well(*this, 1);
  }
};

/// A run, which a program makes once for all its tests. Each test gets the folder as the constructor left it.
template <class Run, class... Made>
const Run& made_once(const Made&... of) {
  static std::map<std::tuple<Made...>, std::unique_ptr<Run>> runs;
  static const TemporaryFolder kept;
  auto& run = runs[{of...}];
  const bool is_new = run == nullptr;
  if (is_new) run = std::make_unique<Run>(of...);
  const fs::path folder = run->folder.path(), copy = kept.path() / folder.filename();
  if (!is_new)
    for (const auto& entry : fs::directory_iterator(folder)) fs::remove_all(entry.path());
  const auto from = is_new ? folder : copy, to = is_new ? copy : folder;
  EXPECT_EQ(run_process({"cp", "-a", from.string() + "/.", to.string()}).code, 0);  // links stay links
  return *run;
}

}  // namespace trireme::tests
