// A configuration that cannot run is refused once, by one process that checks for all ranks before any of them starts.
// The rules themselves are in tests/unit/train/refusals_test.cpp.
#include "tests/failure/counted_front.h"
#include "tests/failure/small_run.h"

namespace trireme::tests {
namespace {

TEST(Refusals, ComeOnceFromOneProcess) {
  const SmallRun run;
  const CountedFront front;
  const struct {
    std::vector<std::string> sets;
    const char* says;
    int ranks, code;
  } rows[] = {
      {{"run.dir="}, "run.dir=: is empty", 8, 2},
      {{"train.epochs=1"}, "a global batch of 8 cannot be split over 64 data-parallel ranks; use at least 64", 64, 2},
      {{"run.resume=/usr"},
       "/usr: no manifest.json in it, so it is not a complete checkpoint; name another checkpoint or run's folder",
       8,
       7},
      {{"parallel.tp=2"},
       "parallel.tp=2: ranks = dp x pp x sp x tp, but 3 is not a multiple of 2 (tp = 2); start 4 ranks",
       3,
       2},
      {{"parallel.plugin=gemini", "plugin.gemini.shard_param_frac=1.5"}, "must be at least 0 and at most 1", 8, 2},
  };
  for (const auto& [sets, says, ranks, code] : rows) {
    SCOPED_TRACE(sets.front());
    std::vector<std::string> arguments{front.command(), "train", run.config, "--ranks", std::to_string(ranks)};
    for (const auto& set : sets) arguments.insert(arguments.end(), {"--set", set});
    expect_only_refusal(run_process(arguments), code, says);
    EXPECT_EQ(front.started(), std::vector<std::string>{"none"});
    EXPECT_FALSE(fs::exists(run.dir()));
  }
}

TEST(RefusalsOfData, NeedAnExistingFolder) {
  const SmallRun run("[data]\nname = \"image_folder\"\n");
  expect_only_refusal(run.train(8), 2, "is required with name = \"image_folder\"");
  expect_only_refusal(run.train(8, {"--set", "data.path=/nowhere/leaves"}), 3, "/nowhere/leaves");
  expect_only_refusal(run.train(8, {"--set", "data.path=nowhere"}, {.folder = run.folder.path()}), 3,
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
