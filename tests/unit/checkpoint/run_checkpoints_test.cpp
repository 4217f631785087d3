// What a listing says of a run's checkpoints, and which files each use of a checkpoint needs.
#include "core/checkpoint/run_checkpoints.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <functional>

#include "core/base/files/files.h"
#include "core/checkpoint/checkpoint_files.h"
#include "core/checkpoint/weights/weights_source.h"
#include "tests/unit/checkpoint/folder.h"

namespace trireme::checkpoint {
namespace {

namespace fs = std::filesystem;
using shard::Placement;

/// A checkpoint of a run with two tensors and their moments, and an average if it is wanted. `best`: the file of the
/// best weights.
std::string save(const std::string& run, std::int64_t step, bool with_average = false, const std::string& best = "") {
  CheckpointContents contents;
  contents.best = best;
  if (!best.empty()) contents.best_digest = digest_file(best);
  contents.record.progress = {2, 1, step, 8 * step};
  contents.record.config =
      "[parallel]\nplugin = \"hybrid_parallel\"\ndp = 4\n[plugin.hybrid_parallel]\ntp_size = 2\npp_size = "
      "1\nzero_stage = 0\n";
  const auto slices = [&](const std::string& ending, double value) {
    std::vector<shard::Slice> out;
    for (const std::string name : {"layer.weight", "layer.bias"})
      out.push_back({Placement::whole(name + ending, {3}), at::full({3}, value)});
    return out;
  };
  contents.weights = slices("", 1);
  contents.optimizer = slices(".exp_avg", 2);
  if (with_average) contents.average = slices("", 3);
  return save_checkpoint(run, contents, 99, alone());
}

// A run goes on without its best weights, but has lost them.
TEST(RunCheckpoints, LostBestWeightsAreListed) {
  const TestFolder run;
  put_bytes(run / "best", "the best weights");
  const auto folder = save(run.path(), 1, false, run / "best");
  EXPECT_EQ(list_checkpoints(run.path()).at(0).state, Completeness::complete);
  fs::remove(folder + "/best.safetensors");
  const auto listed = list_checkpoints(run.path()).at(0);
  EXPECT_EQ(listed.state, Completeness::weights_only);
  EXPECT_NE(listed.problem.find("best.safetensors: No such file"), std::string::npos) << listed.problem;
  EXPECT_EQ(find_intact_checkpoint(run.path(), Use::resume, Verify::content).folder, folder);
}

TEST(RunCheckpoints, AreListedWithTheirStates) {
  const TestFolder run;
  for (const std::int64_t step : {1, 2, 3, 4, 5}) save(run.path(), step);
  fs::create_directories(run / "checkpoints/step-00000006.tmp");
  put_bytes(run / "checkpoints/notes.txt", "mine");
  for (const std::string other : {"step-abc", "step-", "step-abc.tmp"})
    fs::create_directories(run / "checkpoints/" + other);
  fs::rename(run / "checkpoints/step-00000005", run / "checkpoints/step-00000005.aside");
  fs::remove(run / "checkpoints/step-00000003/optimizer-00000-00.safetensors");
  fs::resize_file(run / "checkpoints/step-00000002/weights-00000-00.safetensors", 10);
  put_bytes(run / "checkpoints/step-00000001/manifest.json", "{}");
  const auto found = list_checkpoints(run.path());
  const struct {
    std::int64_t step;
    Completeness state;
    const char* problem;
  } expected[] = {
      {6, Completeness::incomplete, ""},
      {5, Completeness::set_aside, ""},
      {4, Completeness::complete, ""},
      {3, Completeness::weights_only, "optimizer-00000-00.safetensors: No such file or directory"},
      {2, Completeness::damaged, "weights-00000-00.safetensors is truncated: 10 bytes, but the manifest says "},
      {1, Completeness::damaged, "manifest.json: not a manifest"},
  };
  ASSERT_EQ(found.size(), std::size(expected));
  for (std::size_t i = 0; i < found.size(); ++i) {
    SCOPED_TRACE(found[i].folder);
    EXPECT_EQ(found[i].step, expected[i].step);
    EXPECT_EQ(found[i].state, expected[i].state) << found[i].problem;
    EXPECT_NE(found[i].problem.find(expected[i].problem), std::string::npos) << found[i].problem;
    EXPECT_EQ(found[i].problem.empty(), *expected[i].problem == '\0') << found[i].problem;
    if (found[i].state == Completeness::incomplete) continue;
    EXPECT_EQ(found[i].ranks, 1);
    ASSERT_TRUE(found[i].progress);
    EXPECT_EQ(found[i].progress->samples, 8 * found[i].step);
  }
  EXPECT_EQ(found[2].files, 2);
  EXPECT_EQ(found[2].layout, (std::vector<std::pair<std::string, std::string>>{
                                 {"plugin", "hybrid_parallel"}, {"dp", "4"}, {"tp", "2"}}));
  std::uint64_t bytes = 0;
  for (const auto& entry : fs::directory_iterator(found[2].folder)) bytes += entry.file_size();
  EXPECT_EQ(found[2].bytes, bytes);
}

TEST(RunCheckpoints, AreFoundByTheRunOrThemselves) {
  const TestFolder run;
  const auto first = save(run.path(), 1), second = save(run.path(), 2);
  const std::vector<std::string> both{second, first};
  for (const auto& path : {run.path(), run.path() + "/", run / "checkpoints", run / "checkpoints/"})
    EXPECT_EQ(find_checkpoints(path), both) << path;
  EXPECT_EQ(find_checkpoints(first + "/"), std::vector<std::string>{first});
  fs::create_directories(run / "checkpoints/step-00000003.tmp");
  fs::create_directories(run / "empty/checkpoints");
  const std::pair<std::string, const char*> refused[] = {
      {run / "none", "no such run or checkpoint"},
      {first + "/weights-00000-00.safetensors", "one rank's part of a checkpoint; name the folder "},
      {first + "/state.json", "a file; name a run's folder, or a checkpoint's"},
      {run / "checkpoints/step-00000003.tmp", "an incomplete checkpoint"},
      {run / "empty", "this run has no complete checkpoint"},
      {run / "empty/checkpoints", "this run has no complete checkpoint"},
      {fs::path(run.path()).parent_path().string() + "/", "neither a run's folder, "},
  };
  for (const auto& [path, says] : refused) {
    SCOPED_TRACE(path);
    expect_error([&, at = path] { (void)find_checkpoints(at); }, {says});
  }
}

TEST(RunCheckpoints, TheNewestIntactOneStandsForTheRun) {
  const TestFolder run;
  for (const std::int64_t step : {1, 2, 3, 4}) save(run.path(), step);
  const auto folder_of = [&](std::int64_t step) { return checkpoint_folder(run.path(), step); };
  const auto find = [&](Use use, Verify how) { return find_intact_checkpoint(run.path(), use, how); };
  EXPECT_EQ(find(Use::resume, Verify::content).folder, folder_of(4));
  EXPECT_TRUE(find(Use::resume, Verify::content).skipped.empty());
  fs::remove(folder_of(4) + "/weights-00000-00.safetensors");
  auto bytes = bytes_of(folder_of(3) + "/weights-00000-00.safetensors");
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  put_bytes(folder_of(3) + "/weights-00000-00.safetensors", bytes);
  fs::remove(folder_of(2) + "/optimizer-00000-00.safetensors");
  const struct {
    Use use;
    Verify how;
    std::int64_t step;
  } rows[] = {{Use::weights, Verify::sizes, 3},
              {Use::weights, Verify::content, 2},
              {Use::resume, Verify::sizes, 3},
              {Use::resume, Verify::content, 1}};
  for (const auto& [use, how, step] : rows) {
    const auto found = find(use, how);
    EXPECT_EQ(found.folder, folder_of(step));
    ASSERT_EQ(found.skipped.size(), static_cast<std::size_t>(4 - step));
    EXPECT_EQ(found.skipped[0],
              "step-00000004 skipped: " + folder_of(4) +
                  "/weights-00000-00.safetensors: No such file or directory, but the manifest lists it");
  }
  expect_error([&] { (void)find_intact_checkpoint(folder_of(3), Use::weights, Verify::content); },
               {"weights-00000-00.safetensors is damaged"});
  fs::remove(folder_of(1) + "/manifest.json");
  expect_error([&] { (void)find(Use::resume, Verify::content); },
               {run.path() + ": none of the run's 4 checkpoints is intact: ", "optimizer-00000-00.safetensors: No such",
                "no manifest.json in it", "restore the files of one of them from a copy"});
}

TEST(RunCheckpoints, ServeAsWeightsWithoutTheOptimizer) {
  for (const bool averaged : {false, true}) {
    const TestFolder run;
    const auto folder = save(run.path(), 1, averaged);
    const auto read = [&] {
      const WeightsSource source(find_weights(folder));
      const auto* file = source.file_of("layer.weight");
      EXPECT_NE(file, nullptr);
      return file->read("layer.weight", Placement::whole("layer.weight", {3}));
    };
    fs::remove(folder + "/optimizer-00000-00.safetensors");
    const auto expected = at::full({3}, averaged ? 3.0 : 1.0);
    EXPECT_TRUE(at::equal(read(), expected));
    EXPECT_EQ(verify_checkpoint_weights(folder, Verify::content).progress.global_step, 1);
    expect_error([&] { const Checkpoint all(folder, Verify::sizes); },
                 {"optimizer-00000-00.safetensors: No such file or directory, but the manifest lists it"});
    // With an average, the trained weights are not read either.
    const auto weights = folder + "/weights-00000-00.safetensors";
    fs::remove(weights);
    if (averaged)
      EXPECT_TRUE(at::equal(read(), expected));
    else
      expect_error([&] { (void)open_checkpoint_weights(folder); }, {weights + ": No such file or directory"});
    const auto needed = folder + (averaged ? "/average-00000-00.safetensors" : "/state.json");
    put_bytes(needed, "");
    expect_error([&] { (void)open_checkpoint_weights(folder); }, {needed});
  }
}

TEST(RunCheckpoints, APartIsNoModel) {
  const TestFolder run;
  const auto folder = save(run.path(), 1), part = folder + "/weights-00000-00.safetensors";
  expect_error([&] { (void)find_weights(part); }, {part + ": one rank's part of the checkpoint " + folder +
                                                   ", with slices of the tensors; name that folder"});
  // Elsewhere it is a file like any other.
  fs::copy_file(part, run / "weights-00000-00.safetensors");
  EXPECT_EQ(find_weights(run / "weights-00000-00.safetensors"), run / "weights-00000-00.safetensors");
  EXPECT_EQ(checkpoint_of_part(folder + "/best.safetensors"), "");
  for (const auto& [name, rank] : std::vector<std::pair<std::string, int>>{{"weights-00003-00.safetensors", 3},
                                                                           {"average-12345-117.safetensors", 12345},
                                                                           {"optimizer-00000-01.safetensors", 0},
                                                                           {"weights.safetensors", -1},
                                                                           {"weights-3-00.safetensors", -1},
                                                                           {"model-00001-of-00002.safetensors", -1}})
    EXPECT_EQ(rank_of_file(name), rank) << name;
}

}  // namespace
}  // namespace trireme::checkpoint
