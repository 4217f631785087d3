// main() of every multi-rank test. It fails when the number of ranks is not the one that CTest set, or the device does
// not exist. An argument names files: `parity hybrid` runs the tests of hybrid_*.cpp alone. Rank 0 prints GoogleTest's
// output, and the other ranks only their failures. A test that runs on rank 0 without an assertion fails: it has
// compared nothing.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>

#include "core/comm/world.h"
#include "tests/ranks/device.h"
#include "tests/ranks/world.h"

namespace trireme::tests {
static comm::World* the_world = nullptr;
comm::World& world() { return *the_world; }

/// Starts the world; on failure prints the reason and returns null.
static std::unique_ptr<comm::World> start(const LaunchInfo& info) {
  const char* expected = std::getenv("TRIREME_TEST_RANKS");
  if (expected != nullptr && std::atoi(expected) != info.size) {
    std::fprintf(stderr, "started with %d ranks, the test needs %s\n", info.size, expected);
    return nullptr;
  }
  try {
    return comm::World::start(info, {.device = test_device(),
                                     .timeout = std::chrono::seconds(120),
                                     .init_timeout = std::chrono::seconds(120),
                                     .check = std::getenv("TRIREME_TEST_CHECK") != nullptr});
  } catch (const std::exception& error) {
    if (info.rank == 0) std::fprintf(stderr, "%s\n", error.what());
    return nullptr;
  }
}

/// Leaves the suites of other files out. False if no suite is in files of that name.
static bool select_files(const std::string& name) {
  auto filter = ::testing::GTEST_FLAG(filter);
  filter += filter.find('-') == std::string::npos ? '-' : ':';
  const auto& tests = *::testing::UnitTest::GetInstance();
  bool found = false;
  for (int i = 0; i < tests.total_test_suite_count(); ++i) {
    const auto& suite = *tests.GetTestSuite(i);
    const auto file = std::filesystem::path(suite.GetTestInfo(0)->file()).filename().string();
    if (file.starts_with(name + "_")) {
      found = true;
    } else {
      filter += std::string(suite.name()) + ".*:";
    }
  }
  ::testing::GTEST_FLAG(filter) = filter;
  return found;
}

/// Fails a test of this rank that has made no assertion and was not skipped.
struct NoEmptyTests : ::testing::EmptyTestEventListener {
  std::int64_t before = 0;
  void OnTestStart(const ::testing::TestInfo&) override { before = assertions_made; }
  void OnTestEnd(const ::testing::TestInfo& test) override {
    if (assertions_made == before && !test.result()->Skipped() && !test.result()->Failed())
      ADD_FAILURE() << test.test_suite_name() << "." << test.name()
                    << " has made no assertion; where it has nothing to check, it must skip (GTEST_SKIP)";
  }
};
}  // namespace trireme::tests

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  if (argc > 1 && !trireme::tests::select_files(argv[1])) {
    std::fprintf(stderr, "no test is in files %s_*.cpp\n", argv[1]);
    return 1;
  }
  const auto info = trireme::detect_launch();
  auto world = trireme::tests::start(info);
  if (!world) return 1;
  trireme::tests::the_world = world.get();
  if (info.rank == 0 && world->device().is_cuda()) std::printf("on GPUs, transport: %s\n", world->transport().c_str());
  auto& listeners = ::testing::UnitTest::GetInstance()->listeners();
  if (info.rank == 0) {
    listeners.Append(new trireme::tests::NoEmptyTests);
  } else {
    delete listeners.Release(listeners.default_result_printer());
    struct Failures : ::testing::EmptyTestEventListener {
      int rank;
      explicit Failures(int r) : rank(r) {}
      void OnTestPartResult(const ::testing::TestPartResult& result) override {
        if (result.failed())
          std::fprintf(stderr, "rank %d: %s:%d: %s\n", rank, result.file_name() ? result.file_name() : "?",
                       result.line_number(), result.message());
      }
    };
    listeners.Append(new Failures(info.rank));
  }
  const int result = RUN_ALL_TESTS();
  world.reset();
  std::fflush(nullptr);
  _exit(result);  // LibTorch's destructors take 0.1 s of each rank
}
