// A run's folder: earlier runs are moved aside, other files are left alone, and one run at a time writes there.
#include "core/resume/run_folder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/resume/restart.h"
#include "tests/file_limit.h"

namespace trireme::train {
namespace {

namespace fs = std::filesystem;

class RunFolders : public testing::Test {
 protected:
  RunFolders() {
    auto name = (fs::path(testing::TempDir()) / "run-folder-XXXXXX").string();
    base_ = mkdtemp(name.data());
  }
  ~RunFolders() override { fs::remove_all(base_); }
  [[nodiscard]] std::string dir() const { return (base_ / "run").string(); }
  std::unique_ptr<RunFolder> begin() const {
    return std::make_unique<RunFolder>(
        dir(), "# config\n", [](checkpoint::Damages& /*known*/) { return ResumePoint{}; }, true);
  }
  void write(const fs::path& path) const {
    fs::create_directories(path.parent_path());
    std::ofstream(path) << "mine";
  }
  [[nodiscard]] std::string refusal() const {
    try {
      begin();
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "";
  }
  fs::path base_;
};

TEST_F(RunFolders, AnEarlierRunIsMovedAside) {
  begin()->metric({{"kind", "event"}});
  fs::create_directories(dir() + "/checkpoints/step-00000001");
  for (const char* made : {"summary.json", kTimelineFile, "model-best/model.safetensors"})
    write(fs::path(dir()) / made);
  const auto second = begin();
  ASSERT_EQ(second->resume_point().notes.size(), 1U);
  EXPECT_NE(second->resume_point().notes[0].find(dir() + ".1"), std::string::npos);
  EXPECT_TRUE(fs::exists(dir() + ".1/checkpoints/step-00000001"));
  EXPECT_TRUE(fs::exists(fs::path(dir() + ".1") / kTimelineFile));
  EXPECT_FALSE(fs::exists(dir() + "/checkpoints"));
}

TEST_F(RunFolders, OtherFilesAreLeftAlone) {
  for (const char* other : {"notes.txt", "photos/1.jpg", ".hidden"}) {
    begin();
    write(fs::path(dir()) / other);
    EXPECT_NE(refusal().find("not part of a run"), std::string::npos) << other;
    EXPECT_TRUE(fs::exists(fs::path(dir()) / other));
    EXPECT_FALSE(fs::exists(dir() + ".1"));
    fs::remove_all(dir());
  }
  write(dir());
  EXPECT_NE(refusal().find("is a file"), std::string::npos);
}

// A later start may go on from an earlier step than the start before it.
TEST_F(RunFolders, StartsStayInTheMetrics) {
  const auto step = [](int at) -> nlohmann::json {
    return {{"kind", "step"}, {"step", at}, {"samples", 8}, {"samples_per_s", 4.0}};
  };
  {
    const auto first = begin();
    for (const int at : {1, 2, 3, 4}) first->metric(step(at));
    first->metric({{"kind", "event"}, {"event", kStartEvent}, {"step", 4}, {"start_up_s", 0.0}});
    first->metric(step(5));
    first->metric({{"kind", "event"}, {"event", "save"}, {"step", 5}, {"held_s", 1.5}});
  }
  std::ofstream(dir() + "/metrics.jsonl", std::ios::app)
      << R"({"kind": 3, "event": null, "step": "x", "time": "now", "split": []})"
      << "\n"
      << R"({"kind": "st)";
  const auto checkpoint = dir() + "/checkpoints/step-00000002";
  fs::create_directories(checkpoint);
  RunFolder second(
      dir(), "# config\n", [&](checkpoint::Damages& /*known*/) { return ResumePoint{.from = checkpoint}; }, true);
  second.go_on(2, true);
  std::vector<std::string> left;
  std::ifstream lines(dir() + "/metrics.jsonl");
  for (std::string line; std::getline(lines, line);) left.push_back(line);
  ASSERT_EQ(left.size(), 4U);
  EXPECT_NE(left[1].find("\"step\":2"), std::string::npos) << left[1];
  EXPECT_NE(left[2].find("\"event\":\"start\""), std::string::npos) << left[2];
  EXPECT_EQ(second.dropped().seconds, 2 + 2 + 2 + 1.5) << "three steps and the save";
  EXPECT_GT(second.dropped().end, 0);
  EXPECT_EQ(second.times().training, 4);
}

// What is called checkpoints need not be a run's.
TEST_F(RunFolders, AFileCalledCheckpointsIsNoRun) {
  write(fs::path(dir()) / "checkpoints");
  const auto said = refusal();
  EXPECT_NE(said.find(dir() + "/checkpoints is a file"), std::string::npos) << said;
  EXPECT_NE(said.find("rename it, or name another run.dir"), std::string::npos) << said;
  EXPECT_TRUE(fs::is_regular_file(dir() + "/checkpoints"));
  EXPECT_FALSE(fs::exists(dir() + ".1"));
}

// A command that starts its ranks again uses the folder that it has begun, but moves what it has not.
TEST_F(RunFolders, AnOwnStartWithoutACheckpointIsNotMoved) {
  struct Row {
    const char* what;
    bool begun, saved, finished, moved;
  };
  for (const auto& row : {Row{"another command's run", false, false, false, true},
                          {"an own start that left nothing", true, false, false, false},
                          {"an own start with a checkpoint", true, true, false, true},
                          {"an own run that is finished", true, false, true, true}}) {
    begin()->metric({{"kind", "event"}});
    fs::create_directories(dir() + "/checkpoints/step-00000002.tmp");
    if (row.saved) fs::create_directories(dir() + "/checkpoints/step-00000001");
    if (row.finished) write(fs::path(dir()) / "summary.json");
    if (row.begun) setenv(kTrainedInVariable, fs::absolute(dir()).c_str(), 1);
    const auto again = begin();
    EXPECT_EQ(fs::exists(dir() + ".1"), row.moved) << row.what;
    EXPECT_FALSE(fs::exists(dir() + "/checkpoints")) << row.what;
    EXPECT_EQ(fs::file_size(dir() + "/metrics.jsonl"), 0U) << row.what;
    EXPECT_EQ(again->resume_point().notes.size(), 1U) << row.what;
    unsetenv(kTrainedInVariable);
    fs::remove_all(dir() + ".1");
    fs::remove_all(dir());
  }
}

TEST_F(RunFolders, OneRunAtATimeWritesThere) {
  auto first = begin();
  EXPECT_NE(refusal().find("another run is writing"), std::string::npos);
  EXPECT_FALSE(fs::exists(dir() + ".1"));
  first->metric({{"kind", "event"}});
  first.reset();
  EXPECT_EQ(refusal(), "");
}

// A run that still ends may be publishing a checkpoint.
TEST_F(RunFolders, ThePointIsChosenWhenNoOtherRunWrites) {
  fs::create_directories(dir());
  bool was_locked = false;
  const auto find = [&](checkpoint::Damages& /*known*/) {
    was_locked = refusal().find("another run is writing") != std::string::npos;
    return ResumePoint{};
  };
  const RunFolder run(dir(), "# config\n", find, true);
  EXPECT_TRUE(was_locked);
}

// The ranks of the start before may still be ending.
TEST_F(RunFolders, ARestartWaitsForTheStartBefore) {
  auto before = begin();
  EXPECT_NE(refusal().find("another run is writing"), std::string::npos);
  setenv(kRestartVariable, "1 rank 1 was killed", 1);
  std::thread ends([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    before.reset();
  });
  EXPECT_EQ(refusal(), "");
  unsetenv(kRestartVariable);
  ends.join();
}

// A run that was killed while it removed an old checkpoint, after its last save, saves no more when it goes on.
TEST_F(RunFolders, GoingOnRemovesPartsOfCheckpoints) {
  const auto checkpoints = fs::path(dir()) / "checkpoints";
  for (const char* name : {"step-00000002.tmp", "step-00000004", "step-00000006.tmp"})
    write(checkpoints / name / "state.json");
  const auto from = (checkpoints / "step-00000004").string();
  const RunFolder folder(
      dir(), "# config\n", [&](checkpoint::Damages& /*known*/) { return ResumePoint{.from = from}; }, true);
  EXPECT_TRUE(fs::exists(from));
  EXPECT_EQ(std::distance(fs::directory_iterator(checkpoints), fs::directory_iterator()), 1);
}

// The results of a run that is trained further are no longer its results.
TEST_F(RunFolders, GoingOnRemovesTheSummary) {
  const auto folder = begin();
  folder->summary({{"steps", 2}});
  (void)folder->go_back(2, true);
  EXPECT_FALSE(fs::exists(dir() + "/summary.json"));
}

// A run that was stopped before an evaluation makes it when it goes on; if it is killed then, again.
TEST_F(RunFolders, AnEvaluationThatIsMadeAgainHasOneLine) {
  const auto lines_after = [&](std::int64_t step, bool is_evaluated) {
    const auto folder = begin();
    for (const auto* kind : {"step", "eval"})
      for (const int of : {1, 2, 3}) folder->metric({{"kind", kind}, {"split", "validation"}, {"step", of}});
    (void)folder->go_back(step, is_evaluated);
    std::vector<std::string> out;
    std::ifstream lines(dir() + "/metrics.jsonl");
    for (std::string line; std::getline(lines, line);) {
      const auto found = nlohmann::json::parse(line);
      out.push_back(found.at("kind").get<std::string>() + std::to_string(found.at("step").get<int>()));
    }
    return out;
  };
  EXPECT_EQ(lines_after(2, true), (std::vector<std::string>{"step1", "step2", "eval1", "eval2"}));
  EXPECT_EQ(lines_after(2, false), (std::vector<std::string>{"step1", "step2", "eval1"}));
}

// run.on_save_error = "continue": a full disk costs whole lines, and is said once.
TEST_F(RunFolders, BearsErrorsIfAsked) {
  const auto folder = begin();
  const auto file = dir() + "/metrics.jsonl";
  const auto line = [](const char* event) { return nlohmann::json{{"kind", "event"}, {"event", event}}; };
  folder->metric(line("first"));
  char* text = nullptr;
  std::size_t size = 0;
  std::FILE* stream = open_memstream(&text, &size);
  folder->bear_errors(Log(0, stream));
  {
    const tests::FileLimit full(fs::file_size(file) + 5);  // a part of the next line fits
    for (int i = 0; i < 3; ++i) folder->metric(line("lost"));
  }
  std::fclose(stream);
  const std::string said(text);
  std::free(text);
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << said;
  EXPECT_NE(said.find("metrics.jsonl: cannot be written"), std::string::npos) << said;
  EXPECT_NE(said.find("(ulimit -f"), std::string::npos) << "the remedy: " << said;
  folder->metric(line("last"));
  std::ifstream lines(file);
  std::vector<std::string> events;
  for (std::string found; std::getline(lines, found);) events.push_back(nlohmann::json::parse(found).at("event"));
  EXPECT_EQ(events, (std::vector<std::string>{"first", "last"}));
}

// A return to an earlier step drops the lines after it, for which there may be no space.
TEST_F(RunFolders, BearsErrorsOfAReturnIfAsked) {
  for (const bool bears : {true, false}) {
    SCOPED_TRACE(bears);
    const auto folder = begin();
    const auto file = dir() + "/metrics.jsonl";
    for (const int step : {1, 2, 3}) folder->metric({{"kind", "step"}, {"step", step}});
    if (bears) folder->bear_errors(Log(1));
    {
      const tests::FileLimit full(5);
      if (bears)
        EXPECT_EQ(folder->go_back(1, true), std::vector<std::string>());
      else
        EXPECT_THROW(folder->go_back(1, true), CheckpointError);
    }
    folder->metric({{"kind", "step"}, {"step", 4}});
    EXPECT_EQ(folder->go_back(2, true), std::vector<std::string>{"metrics   2 lines after step 2 dropped"});
    folder->metric({{"kind", "step"}, {"step", 5}});
    std::ifstream lines(file);
    std::vector<int> steps;
    for (std::string line; std::getline(lines, line);) steps.push_back(nlohmann::json::parse(line).at("step"));
    EXPECT_EQ(steps, (std::vector<int>{1, 2, 5}));
  }
}

// It is an error of the run, not of the line: the other ranks have no line that could fail.
TEST_F(RunFolders, AProblemIsKeptForTheEndOfTheRunUnlessAsked) {
  const auto folder = begin();
  const auto file = dir() + "/metrics.jsonl";
  {
    const tests::FileLimit full(5);
    folder->metric({{"kind", "event"}});
  }
  EXPECT_NE(folder->problem().find(file + ": cannot be written"), std::string::npos) << folder->problem();
  folder->metric({{"kind", "event"}});
  EXPECT_EQ(fs::file_size(file), 0U) << "a gap, or a part of a line";
  EXPECT_THROW(folder->summary({{"steps", 2}}), CheckpointError);
  EXPECT_FALSE(fs::exists(dir() + "/summary.json"));
}

}  // namespace
}  // namespace trireme::train
