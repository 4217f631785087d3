// A checkpoint that is saved in the background and that one rank cannot write: every rank learns it after the same
// step. Best weights, results and lines of metrics that the first rank cannot write, and its errors in a resume: the
// same.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/base/files/files.h"
#include "core/checkpoint/shared_errors.h"
#include "core/checkpoint/weights/model_folder.h"
#include "core/comm/host_values.h"
#include "core/resume/export.h"
#include "core/resume/run_folder.h"
#include "core/setup/lora.h"
#include "core/train/run.h"
#include "tests/file_limit.h"
#include "tests/ranks/world.h"
#include "tests/unit/train/small_run.h"
#include "trireme.h"

namespace trireme::tests {
namespace {

namespace fs = std::filesystem;

const std::string kText = train::testing_tools::kModelAndData + R"([run]
async_save = true
checkpoint_every = 2
keep_checkpoints = 99
[train]
global_batch = 4
epochs = 1
)";

const std::string kBestText = train::testing_tools::kModelAndData + R"([run]
keep_checkpoints = 0
export = "best"
[train]
global_batch = 4
epochs = 1
eval_every = 2
best = "validation.loss"
)";

/// On the last rank no file may be larger than 1 KB, from the first complete checkpoint, of step 2, to the end of
/// step 7. The save of step 4 fails, and that of step 6 unless the machine is slow.
struct LimitLastRank : train::RunCallback {
  std::vector<std::string> saved;
  std::int64_t steps = 0;
  std::optional<FileLimit> limit;
  void on_step_end(train::RunContext& run, const train::StepEnd& /*step*/) override {
    steps = run.state.at.global_step;
    if (steps == 7) limit.reset();
  }
  void on_save(train::RunContext& run, const std::string& folder) override {
    saved.push_back(fs::path(folder).filename());
    if (saved.size() == 1 && run.world.rank() == run.world.size() - 1) limit.emplace(1 << 10);
  }
};

std::vector<std::string> on_all_ranks(const std::string& text) { return comm::all_gather_text(world().group(), text); }

/// The message of the CheckpointError that ends a collective action, or ""; expects the same on every rank.
std::string error_of_all(const std::function<void()>& action) {
  std::string error;
  try {
    action();
  } catch (const CheckpointError& caught) {
    error = caught.what();
  }
  for (const auto& other : on_all_ranks(error)) EXPECT_EQ(other, error);
  return error;
}

/// Trains in the folder with this `on_save_error`, and returns the message of the error that ends it, or "".
/// `first_rank_bytes`: the most that a file of the first rank may have, or 0.
std::string error_of_run(const std::string& toml, const std::string& dir, const std::string& policy,
                         train::RunOptions options, std::uintmax_t first_rank_bytes = 0) {
  auto table = config::parse_text(toml, "a.toml");
  for (const auto& set : {"run.dir=" + dir, "run.on_save_error=" + policy,
                          std::string("run.device=") + (world().device().is_cpu() ? "cpu" : "cuda")})
    config::apply_override(table, set);
  auto setup = train::prepare_training(train::from_table(std::move(table), builtin_kinds()), world().info(), Log(1));
  auto folder = train::open_run(setup);
  return error_of_all([&] {
    std::optional<FileLimit> limit;
    if (first_rank_bytes > 0 && world().rank() == 0) limit.emplace(first_rank_bytes);
    train::run_training(std::move(setup), world(), std::move(folder), std::move(options));
  });
}

std::vector<std::string> checkpoints_in(const std::string& dir) {
  std::vector<std::string> names;
  if (!fs::exists(dir + "/checkpoints")) return names;
  for (const auto& entry : fs::directory_iterator(dir + "/checkpoints")) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

TEST(TrainerSaves, AFailureOnOneRankIsEveryRanks) {
  if (world().size() == 1) GTEST_SKIP() << "needs several ranks";
  for (const std::string policy : {"continue", "stop"}) {
    const auto name = "trireme-saves-" + std::to_string(getpid());
    const auto dir = on_all_ranks((fs::temp_directory_path() / name).string()).front();
    const auto limit = std::make_shared<LimitLastRank>();
    const auto error = error_of_run(kText, dir, policy, {.callbacks = {limit}});
    for (const auto& other : on_all_ranks(std::to_string(limit->steps))) EXPECT_EQ(other, std::to_string(limit->steps));
    const auto last = fmt::format("weights-{:05d}-00.safetensors", world().size() - 1);
    if (policy == "stop") {
      EXPECT_NE(error.find("step-00000004.tmp/" + last), std::string::npos) << error;
      EXPECT_EQ(limit->saved, (std::vector<std::string>{"step-00000002"}));
    } else {
      EXPECT_EQ(error, "");
      EXPECT_EQ(limit->saved.front(), "step-00000002");
      EXPECT_EQ(std::count(limit->saved.begin(), limit->saved.end(), "step-00000004"), 0);
      EXPECT_EQ(std::count(limit->saved.begin(), limit->saved.end(), "step-00000008"), 1);
      EXPECT_EQ(limit->saved.back(), "step-00000011");
    }
    EXPECT_EQ(checkpoints_in(dir), limit->saved) << policy;
    world().group().barrier();
    if (world().rank() == 0) fs::remove_all(dir);
  }
}

/// On the first rank a file may not be as large as that of the best weights, from the second best evaluation until the
/// next step.
struct LimitBest : train::RunCallback {
  std::string best_before;          ///< content of the file then
  std::int64_t kept = 0, lost = 0;  ///< the steps of the best weights before it, and of those that are not kept
  std::optional<FileLimit> limit;
  void on_evaluate(train::RunContext& run, const train::Evaluation& evaluation) override {
    if (evaluation.split != std::string("validation") || !evaluation.is_best || lost > 0) return;
    if (kept == 0) {
      kept = evaluation.of.step;
      return;
    }
    lost = evaluation.of.step;
    if (run.world.rank() != 0) return;
    best_before = read_file(run.best->file());
    limit.emplace(best_before.size() - 1);
  }
  void on_step_begin(train::RunContext& run) override {
    if (lost == 0 || run.state.at.global_step != lost) return;
    limit.reset();
    EXPECT_EQ(run.state.best.step, kept) << "is not that of the weights that are kept";
    if (run.world.rank() != 0) return;
    EXPECT_TRUE(read_file(run.best->file()) == best_before) << "the earlier weights are changed";
    EXPECT_EQ(digest_file(run.best->file()), run.best->digest());
    EXPECT_FALSE(fs::exists(checkpoint::next_model(run.folder->dir() + "/" + train::kBestModel)));
  }
  void on_exception(const std::exception_ptr& /*error*/) override { limit.reset(); }
};

std::vector<nlohmann::json> save_errors_of(const std::string& dir) {
  std::vector<nlohmann::json> out;
  std::istringstream lines(read_file(dir + "/metrics.jsonl"));
  for (std::string line; std::getline(lines, line);)
    if (auto json = nlohmann::json::parse(line); json.value("event", "") == "save_error") out.push_back(json);
  return out;
}

TEST(TrainerSaves, BestWeightsThatCannotBeWrittenAreAFailureOfEveryRank) {
  for (const std::string policy : {"continue", "stop"}) {
    SCOPED_TRACE(policy);
    const auto name = "trireme-best-" + std::to_string(getpid());
    const auto dir = on_all_ranks((fs::temp_directory_path() / name).string()).front();
    const auto limit = std::make_shared<LimitBest>();
    const auto error = error_of_run(kBestText, dir, policy, {.callbacks = {limit}});
    ASSERT_GT(limit->lost, 0) << "no second best evaluation";
    if (policy == "stop")
      EXPECT_NE(error.find(".model-best.trireme-export.tmp/model.safetensors: cannot be written: File too large"),
                error.npos)
          << error;
    else
      EXPECT_EQ(error, "");
    if (world().rank() == 0) {
      const auto errors = save_errors_of(dir);
      ASSERT_EQ(errors.size(), policy == "stop" ? 0U : 1U);
      if (policy == "continue") {
        EXPECT_EQ(errors[0].at("what"), "best weights");
        EXPECT_EQ(errors[0].at("step"), limit->lost);
      } else {
        EXPECT_TRUE(read_file(dir + "/model-best/model.safetensors") == limit->best_before);
      }
      EXPECT_FALSE(fs::exists(checkpoint::next_model(dir + "/" + train::kBestModel)));
    }
    world().group().barrier();
    if (world().rank() == 0) fs::remove_all(dir);
  }
}

/// After the first step, the first rank finds something else where a file or folder of the result is to be.
struct BlockResult : train::RunCallback {
  std::string name;
  explicit BlockResult(std::string blocked) : name(std::move(blocked)) {}
  void on_step_end(train::RunContext& run, const train::StepEnd& /*step*/) override {
    if (run.world.rank() != 0 || run.state.at.global_step != 1) return;
    const auto path = run.folder->dir() + "/" + name;
    if (name == train::kExportedModel || name == train::kMergedModel)
      write_file(path, "no folder");
    else
      fs::create_directories(path + "/no file");
  }
};

// Only the first rank writes these.
TEST(TrainerSaves, AResultThatCannotBeWrittenIsAFailureOfEveryRank) {
  const auto name = "trireme-result-" + std::to_string(getpid());
  const auto root = on_all_ranks((fs::temp_directory_path() / name).string()).front();
  ASSERT_EQ(error_of_run(kBestText, root + "/trained", "stop", {}), "");
  const auto adapts = "[model]\nweights = \"" + root + "/trained/model\"\n" +
                      kBestText.substr(kBestText.find("[data]")) + "[lora]\nrank = 2\nmerge = true\n";
  for (const auto& [file, says, text] :
       {std::tuple{train::kExportedModel, "/model: the folder cannot be created", kBestText},
        {train::kMergedModel, "/model-merged: the folder cannot be created", adapts},
        {train::kTimelineFile, "/timeline.json: cannot be renamed into place", kBestText},
        {"summary.json", "/summary.json: cannot be renamed into place", kBestText}}) {
    const auto error = error_of_run(text, root + "/run", "continue",
                                    {.timeline = true, .callbacks = {std::make_shared<BlockResult>(file)}});
    EXPECT_NE(error.find(says), error.npos) << error;
    world().group().barrier();
    if (world().rank() == 0) fs::remove_all(root + "/run");
  }
  world().group().barrier();
  if (world().rank() == 0) fs::remove_all(root);
}

/// The first rank cannot write the line of a step in metrics.jsonl.
struct LimitLine : train::RunCallback {
  std::int64_t of, steps = 0;
  std::optional<FileLimit> limit;
  explicit LimitLine(std::int64_t step) : of(step) {}
  void on_step_begin(train::RunContext& run) override { steps = run.state.at.global_step + 1; }
  /// After that line was or was not written.
  void on_log(train::RunContext& run, const train::StepLog& log) override {
    const auto step = log.at.global_step;
    if (run.world.rank() == 0 && step == of - 1) limit.emplace(fs::file_size(run.folder->dir() + "/metrics.jsonl") + 9);
    if (step == of) limit.reset();
  }
};

// The others learn it with the next step, or where they wait for each other: no checkpoint is without the lines before
// it, and no summary.
TEST(TrainerSaves, ALineThatCannotBeWrittenIsAFailureOfEveryRank) {
  const auto text =
      train::testing_tools::kModelAndData + "[run]\ncheckpoint_every = 8\n[train]\nglobal_batch = 4\nepochs = 1\n";
  struct Row {
    std::string policy;
    int of, ends_at;  ///< steps
    std::vector<std::string> saved;
  };
  for (const auto& [policy, of, ends_at, saved] :
       {Row{"stop", 3, 4, {}}, Row{"stop", 8, 8, {}}, Row{"stop", 11, 11, {"step-00000008"}},
        Row{"continue", 3, 11, {"step-00000008", "step-00000011"}}}) {
    SCOPED_TRACE(fmt::format("{} {}", policy, of));
    const bool stops = policy == "stop";
    const auto name = "trireme-line-" + std::to_string(getpid());
    const auto dir = on_all_ranks((fs::temp_directory_path() / name).string()).front();
    const auto limit = std::make_shared<LimitLine>(of);
    const auto error = error_of_run(text, dir, policy, {.callbacks = {limit}});
    if (stops)
      EXPECT_NE(error.find("metrics.jsonl: cannot be written: File too large"), error.npos) << error;
    else
      EXPECT_EQ(error, "");
    for (const auto& steps : on_all_ranks(std::to_string(limit->steps)))
      EXPECT_EQ(steps, std::to_string(world().device().is_cpu() ? ends_at : limit->steps));
    if (world().rank() == 0) {
      std::vector<std::int64_t> expected, found;
      for (int step = 1; step <= (stops ? of : ends_at); ++step)
        if (step != of) expected.push_back(step);
      std::istringstream lines(read_file(dir + "/metrics.jsonl"));
      for (std::string line; std::getline(lines, line);)
        if (const auto json = nlohmann::json::parse(line); json.at("kind") == "step") found.push_back(json.at("step"));
      EXPECT_EQ(found, expected);
      EXPECT_EQ(checkpoints_in(dir), saved);
      EXPECT_EQ(fs::exists(dir + "/summary.json"), !stops);
    }
    world().group().barrier();
    if (world().rank() == 0) fs::remove_all(dir);
  }
}

TEST(TrainerSaves, AnErrorOfAnyRankIsEveryRanks) {
  const int last = world().size() - 1;
  const struct {
    std::function<void()> fails;
    std::string says;
  } rows[] = {{[] { throw CheckpointError("a file is damaged"); }, "a file is damaged"},
              {[] { throw std::runtime_error("a disk is gone"); }, "a test fails: a disk is gone"},
              {[] {}, ""}};
  for (const auto& [fails, says] : rows) {
    const auto on_last = [&, fails = fails] {
      if (world().rank() == last) fails();
    };
    EXPECT_EQ(error_of_all([&] { checkpoint::on_every_rank(world(), on_last, "a test fails"); }), says);
    const auto of_first = error_of_all([&, fails = fails] { checkpoint::on_first_rank(world(), fails); });
    EXPECT_EQ(of_first.empty(), says.empty()) << of_first;
    EXPECT_NE(of_first.find(says.substr(says.rfind(':') + 1)), std::string::npos) << of_first;
  }
}

// Only the first rank takes the best weights from a checkpoint, and rewrites the metrics.
TEST(TrainerSaves, AFailureOfTheFirstRankToResumeIsEveryRanks) {
  const auto name = "trireme-resume-" + std::to_string(getpid());
  const auto dir = on_all_ranks((fs::temp_directory_path() / name).string()).front();
  const auto text = [](const std::string& steps) {
    return train::testing_tools::kModelAndData + "[run]\nresume = \"" + (steps == "4" ? "auto" : "must") +
           "\"\n[train]\nglobal_batch = 4\nepochs = 1\neval_every = 2\nmax_steps = " + steps + "\n";
  };
  ASSERT_EQ(error_of_run(text("4"), dir, "stop", {}), "");
  const auto half = std::stoull(on_all_ranks(std::to_string(fs::file_size(dir + "/metrics.jsonl") / 2)).front());
  const struct {
    std::uintmax_t bytes;
    const char* file;
  } rows[] = {{1, "/.model-best.trireme-export.tmp/"}, {half, "/metrics.jsonl"}};
  for (const auto& [bytes, file] : rows) {
    const auto error = error_of_run(text("6"), dir, "stop", {}, bytes);
    EXPECT_NE(error.find(dir + file), std::string::npos) << error;
    EXPECT_NE(error.find("File too large"), std::string::npos) << error;
  }
  EXPECT_EQ(error_of_run(text("6"), dir, "stop", {}), "");
  world().group().barrier();
  if (world().rank() == 0) fs::remove_all(dir);
}

}  // namespace
}  // namespace trireme::tests
