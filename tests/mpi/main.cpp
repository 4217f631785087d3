// main of every multi-rank test: fails when started with another number of ranks than CTest said, or with a device that
// does not exist; prints rank 0's GoogleTest output and, of the other ranks, failures alone; every rank returns the
// worst result.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>

#include "core/comm/world.h"
#include "tests/mpi/device.h"
#include "tests/mpi/world.h"

namespace trireme::tests {
static comm::World* the_world = nullptr;
comm::World& world() { return *the_world; }

/// Null: said why.
static std::unique_ptr<comm::World> start(const comm::LaunchInfo& info) {
  const char* expected = std::getenv("TRIREME_TEST_RANKS");
  if (expected != nullptr && std::atoi(expected) != info.size) {
    std::fprintf(stderr, "started with %d ranks, the test needs %s\n", info.size, expected);
    return nullptr;
  }
  try {
    return comm::World::start(info, {.device = test_device(), .timeout = std::chrono::seconds(120)});
  } catch (const std::exception& error) {
    if (info.rank == 0) std::fprintf(stderr, "%s\n", error.what());
    return nullptr;
  }
}
}  // namespace trireme::tests

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  const auto info = trireme::comm::detect();
  const auto world = trireme::tests::start(info);
  if (!world) return 1;
  trireme::tests::the_world = world.get();
  if (info.rank == 0 && world->device().is_cuda()) std::printf("on GPUs, transport: %s\n", world->transport().c_str());
  if (info.rank != 0) {
    auto& listeners = ::testing::UnitTest::GetInstance()->listeners();
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
  return RUN_ALL_TESTS();
}
