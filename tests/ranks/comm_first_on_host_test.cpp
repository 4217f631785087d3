// The other ranks of a host find what its first rank has prepared.
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "core/base/error.h"
#include "core/comm/first_on_host.h"
#include "core/comm/host_values.h"
#include "tests/ranks/world.h"

namespace trireme::tests {
namespace {

namespace fs = std::filesystem;

TEST(FirstOnHost, runs_before_the_other_ranks_of_its_host) {
  const bool first = world().info().local_rank == 0;
  const auto id = comm::broadcast_text(world().group(), std::to_string(getpid()));
  const auto file = fs::temp_directory_path() / ("trireme-first-on-host-" + id);
  int calls = 0;
  comm::first_on_host(world(), [&] {
    ++calls;
    EXPECT_EQ(fs::exists(file), !first) << "rank " << world().rank();
    if (!first) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    std::ofstream(file) << "prepared";
  });
  EXPECT_EQ(calls, 1);
  world().group().barrier();
  if (first) fs::remove(file);
}

TEST(FirstOnHost, an_error_there_ends_all_ranks) {
  const bool first = world().info().local_rank == 0;
  int calls = 0;
  const auto fail = [&] {
    ++calls;
    throw DataError("nothing to prepare");
  };
  if (first)
    EXPECT_THROW(comm::first_on_host(world(), fail), DataError);
  else
    EXPECT_THROW(comm::first_on_host(world(), fail), CommError);
  EXPECT_EQ(calls, first ? 1 : 0);
}

}  // namespace
}  // namespace trireme::tests
