// Where a run starts, by run.resume and what is in run.dir (docs/design/resume.md).
#include "core/resume/resume_point.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "core/base/error.h"
#include "core/resume/restart.h"
#include "tests/unit/datasets/folder.h"
#include "tests/unit/train/small_run.h"

namespace trireme::train {
namespace {

namespace fs = std::filesystem;
using data::testing_tools::Folder;
using namespace testing_tools;

/// Stops a run after its third step of five.
struct StopAfterThree : RunCallback {
  void on_step_end(RunContext& run, const StepEnd& /*step*/) override {
    if (run.state.at.global_step == 3) run.stopped_by = "the test";
  }
};

enum class Earlier { none, finished, stopped, without_checkpoint, damaged, newest_damaged };

void make(Earlier earlier, const std::string& dir) {
  if (earlier == Earlier::none) return;
  RunOptions options;
  if (earlier != Earlier::finished) options.callbacks = {std::make_shared<StopAfterThree>()};
  train_small(setup_of(kFiveSteps, {"run.dir=" + dir, "run.checkpoint_every=2"}), options);
  const auto damage = [&](const std::string& step) {
    fs::resize_file(dir + "/checkpoints/" + step + "/state.json", 3);
  };
  if (earlier == Earlier::without_checkpoint) fs::remove_all(dir + "/checkpoints");
  if (earlier == Earlier::newest_damaged || earlier == Earlier::damaged) damage("step-00000003");
  if (earlier == Earlier::damaged) damage("step-00000002");
}

/// What happens, as a word: "new", "moved" (and a new run), the step that it goes on from, or the error's text.
std::string outcome(const std::string& dir, const std::vector<std::string>& set) {
  auto assignments = set;
  assignments.push_back("run.dir=" + dir);
  try {
    auto p = setup_of(kFiveSteps, assignments);
    std::string checked;
    try {
      check_run(p);
    } catch (const CheckpointError& error) {
      checked = error.what();
    }
    const auto folder = open_run(p);
    const auto& point = folder->resume_point();
    EXPECT_EQ(checked, "") << "the check refuses what the run does not";
    if (!point.done.empty()) return "nothing left";
    if (!point.from.empty()) return fs::path(point.from).filename();
    return fs::exists(dir + ".1") ? "moved" : "new";
  } catch (const CheckpointError& error) {
    return error.what();
  }
}

TEST(ResumePoint, FollowsTheTable) {
  struct Row {
    Earlier earlier;
    std::vector<std::string> set;
    std::string expected;  ///< of an error: a part of its text
  };
  const std::vector<std::string> automatic, must{"run.resume=must"}, never{"run.resume=never"};
  const Row rows[] = {
      {Earlier::none, automatic, "new"},
      {Earlier::none, must, "run.resume = \"must\": "},
      {Earlier::none, never, "new"},
      {Earlier::finished, automatic, "moved"},
      {Earlier::finished, {"train.epochs=2"}, "moved"},
      {Earlier::finished, {"run.seed=7"}, "moved"},
      {Earlier::finished, must, "nothing left"},
      {Earlier::finished, {"run.resume=must", "train.epochs=2"}, "step-00000005"},
      {Earlier::finished, {"run.resume=must", "train.epochs=2", "run.seed=7"}, "run.seed = 7 (it was 42)"},
      {Earlier::finished, never, "moved"},
      {Earlier::stopped, automatic, "step-00000003"},
      {Earlier::stopped, {"optimizer.lr=0.5"}, "step-00000003"},
      {Earlier::stopped, {"run.seed=7"}, "--fresh"},
      {Earlier::stopped, {"data.resize_shorter=64"}, "data.resize_shorter = 64 (it was unset)"},
      {Earlier::stopped,
       {"model.num_layers=2"},
       "because the model would change: model.num_layers = 2 (it was 1). Restore the old values, or start a new run "
       "(--fresh)"},
      {Earlier::stopped, must, "step-00000003"},
      {Earlier::stopped, never, "moved"},
      {Earlier::stopped, {"run.resume=never", "run.seed=7"}, "moved"},
      {Earlier::without_checkpoint, automatic, "moved"},
      {Earlier::without_checkpoint, must, "has no checkpoint to go on from"},
      {Earlier::newest_damaged, automatic, "step-00000002"},
      {Earlier::newest_damaged, must, "step-00000002"},
      {Earlier::damaged, automatic, "no checkpoint is intact"},
      {Earlier::damaged, must, "no checkpoint is intact"},
      {Earlier::damaged, never, "moved"},
  };
  for (std::size_t i = 0; i < std::size(rows); ++i) {
    const Folder folder;
    const auto dir = folder.path("run");
    make(rows[i].earlier, dir);
    testing::internal::CaptureStderr();  // warnings of damaged ones
    const auto found = outcome(dir, rows[i].set);
    testing::internal::GetCapturedStderr();
    const bool is_error = rows[i].expected.find(' ') != std::string::npos || rows[i].expected.starts_with("--");
    if (is_error && rows[i].expected != "nothing left")
      EXPECT_NE(found.find(rows[i].expected), std::string::npos) << "row " << i << ": " << found;
    else
      EXPECT_EQ(found, rows[i].expected) << "row " << i;
  }
}

TEST(ResumePoint, StepsBeyondTheConfigurationAreSaid) {
  const Folder folder;
  make(Earlier::stopped, folder.path("run"));
  for (const auto& [steps, says] :
       {std::pair{"2", "beyond    step 3 is after the last of this configuration, 2; what was trained stays"},
        {"4", ""}}) {
    const auto run = open_run(setup_of(kFiveSteps, {"run.dir=" + folder.path("run"), "run.checkpoint_every=2",
                                                    std::string("train.max_steps=") + steps}));
    std::string beyond;
    for (const auto& note : run->resume_point().notes)
      if (note.starts_with("beyond")) beyond = note;
    EXPECT_EQ(beyond, says) << steps;
  }
}

// What the start before has left counts, whatever run.resume says.
TEST(ResumePoint, ARestartGoesOnWithWhatTheStartBeforeLeft) {
  struct Row {
    Earlier earlier;
    const char* resume;
    bool other;  ///< the start before trained elsewhere
    std::string expected;
  };
  for (const auto& row : {Row{Earlier::finished, "auto", false, "nothing left"},
                          {Earlier::finished, "never", false, "nothing left"},
                          {Earlier::finished, "auto", true, "moved"},
                          {Earlier::stopped, "never", false, "step-00000003"},
                          {Earlier::stopped, "/no/other/run", false, "step-00000003"},
                          {Earlier::stopped, "never", true, "moved"},
                          {Earlier::newest_damaged, "never", false, "step-00000002"}}) {
    const Folder folder;
    const auto dir = folder.path("run");
    make(row.earlier, dir);
    setenv(kTrainedInVariable, row.other ? folder.path("other").c_str() : (dir + "/").c_str(), 1);
    testing::internal::CaptureStderr();
    EXPECT_EQ(outcome(dir, {std::string("run.resume=") + row.resume}), row.expected) << row.resume;
    testing::internal::GetCapturedStderr();
    unsetenv(kTrainedInVariable);
  }
}

struct SaveLikeALoop : RunCallback {
  explicit SaveLikeALoop(std::string to) : dir(std::move(to)) {}
  void on_finish(RunContext& run, const RunResult& /*result*/) override { run.boosted.save(dir); }
  std::string dir;
};

// The order of a program's own samples is not known here.
TEST(ResumePoint, ACheckpointOfAProgramsOwnLoopIsNotResumed) {
  const Folder folder;
  train_small(setup_of(kFiveSteps, {"run.dir=" + folder.path("run")}),
              {.callbacks = {std::make_shared<SaveLikeALoop>(folder.path("loop"))}});
  const auto said = outcome(folder.path("other"), {"run.resume=" + folder.path("loop")});
  EXPECT_NE(said.find("was saved by a program's own loop"), std::string::npos) << said;
  EXPECT_NE(said.find("model.weights = \""), std::string::npos) << said;
}

// A run that is told to go on with its own folder by name may also be finished.
TEST(ResumePoint, AFolderIsStartedFromWhateverItsState) {
  const Folder folder;
  make(Earlier::finished, folder.path("run"));
  EXPECT_EQ(outcome(folder.path("other"), {"train.epochs=2", "run.resume=" + folder.path("run")}), "step-00000005");
  const auto nowhere = outcome(folder.path("other"), {"run.resume=" + folder.path("nowhere")});
  EXPECT_TRUE(nowhere.starts_with("run.resume: " + folder.path("nowhere"))) << nowhere;
  for (const auto* other : {"auto (", "must (", "never ("})
    EXPECT_NE(nowhere.find(other), std::string::npos) << nowhere;
}

}  // namespace
}  // namespace trireme::train
