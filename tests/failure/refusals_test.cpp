// A configuration that cannot run is refused once for all ranks, and leaves nothing behind.
// The rules themselves are in tests/unit/setup/refusals_test.cpp.
#include "tests/command/process.h"
#include "tests/command/small_run.h"

namespace trireme::tests {
namespace {

TEST(Refusals, ComeOnceFromAllRanks) {
  const SmallRun run;
  const struct {
    std::vector<std::string> sets;
    const char* says;
    int ranks, code;
  } rows[] = {
      {{"run.dir="}, "run.dir=: is empty", 2, 2},
      {{"train.global_batch=3"},
       "a global batch of 3 cannot be split over 4 data-parallel ranks; use at least 4",
       4,
       2},
      {{"run.resume=/usr"},
       "/usr: no manifest.json in it, so it is not a complete checkpoint; name another checkpoint or run's folder",
       4,
       7},
      {{"parallel.tp=2"},
       "parallel.tp=2: ranks = dp x pp x sp x tp, but 3 is not a multiple of 2 (tp = 2); start 4 ranks",
       3,
       2},
      {{"parallel.plugin=gemini", "plugin.gemini.shard_param_frac=1.5"}, "must be at least 0 and at most 1", 2, 2},
  };
  for (const auto& [sets, says, ranks, code] : rows) {
    SCOPED_TRACE(sets.front());
    std::vector<std::string> options;
    for (const auto& set : sets) options.insert(options.end(), {"--set", set});
    expect_only_refusal(run.train(ranks, options), code, says);
    EXPECT_FALSE(fs::exists(run.dir()));
  }
}

TEST(RefusalsOfData, NeedAnExistingFolder) {
  const SmallRun run("[data]\nname = \"image_folder\"\n");
  expect_only_refusal(run.train(2), 2, "is required with name = \"image_folder\"");
  expect_only_refusal(run.train(2, {"--set", "data.path=/nowhere/leaves"}), 3, "/nowhere/leaves");
  expect_only_refusal(run.train(2, {"--set", "data.path=nowhere"}, {.folder = run.folder.path()}), 3,
                      "nowhere: no such folder (data.path is relative to " + run.folder.path() + ")");
}

// Mistakes that listing the folder reveals are refused at once, not when the first evaluation reads a file.
TEST(RefusalsOfData, NeedImageFilesAndTwoClasses) {
  const SmallRun run("[data]\nname = \"image_folder\"\nimage_size = 16\n");
  const auto data = run.folder.path() + "/leaves";
  ASSERT_EQ(run_process({TRIREME_COMMAND, "data", "leaves", "--out", data, "--images", "30"}).code, 0);
  const auto refused = [&](const std::string& arguments) {
    expect_only_refusal(run.train(2, {"--set", "data.path=" + data}), 3, arguments);
  };
  const auto odd = data + "/validation/rust/odd.png";
  std::ofstream(odd).close();
  refused("odd.png: the file is empty; remove it");
  fs::remove(odd);
  fs::create_symlink("/nowhere.png", odd);
  refused("odd.png: a link to a file that does not exist");
  fs::remove(odd);
  for (const auto* split : {"train", "validation", "test"})
    for (const auto* other : {"rust", "healthy"}) fs::remove_all(data + "/" + split + "/" + other);
  refused("only one class, \"angular_spots\"; a classifier needs at least two");
}

}  // namespace
}  // namespace trireme::tests
