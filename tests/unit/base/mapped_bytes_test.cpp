// Mapped files that become shorter while they are read.
#include "core/base/mapped_bytes.h"

#include <gtest/gtest.h>

#include <fstream>
#include <memory>
#include <vector>

namespace trireme {
namespace {

TEST(MappedBytesDeathTest, AFileThatBecomesShorterIsNamed) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto path = ::testing::TempDir() + "shortened_" + std::to_string(::getpid());
  const auto whole = [&] { std::ofstream(path) << std::string(100'000, 'x'); };
  const auto read_shortened = [&](const MappedBytes& file) {
    say_shortened_files();
    static_cast<void>(!::truncate(path.c_str(), 0));
    volatile char sum = 0;
    for (const char c : file.view) sum = static_cast<char>(sum + c);
  };
  whole();
  const auto says = "shortened_[0-9]+: became shorter, or could not be read";
  EXPECT_EXIT(read_shortened(map_file<DataError>(path)), ::testing::ExitedWithCode(3), says);
  whole();
  // As many files as there are, one after the other and at once, have names.
  for (int i = 0; i < 2000; ++i) EXPECT_EQ(map_file<DataError>(path).view.size(), 100'000U);
  std::vector<MappedBytes> others;
  for (int i = 0; i < 300; ++i) others.push_back(map_file<DataError>(path));
  EXPECT_EXIT(read_shortened(map_file<CheckpointError>(path)), ::testing::ExitedWithCode(7), says);
  std::remove(path.c_str());
}

}  // namespace
}  // namespace trireme
