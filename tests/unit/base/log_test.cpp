// Which messages a rank's log file receives, and which are printed.
#include "core/base/log.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "core/base/error.h"

namespace trireme {
namespace {

std::string content_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(LogFile, ReceivesMessagesLoggedBeforeItIsOpened) {
  const auto folder = testing::TempDir() + "log-file-test-" + std::to_string(getpid());
  std::filesystem::remove_all(folder);
  const auto path = folder + "/logs/rank-1.log";
  std::FILE* out = std::tmpfile();
  const auto file = std::make_shared<LogFile>();
  const Log log(1, out, file);
  log.note("first {}", 1);
  EXPECT_FALSE(std::filesystem::exists(path));
  file->open(path);
  const auto copy = log;
  copy.warn("second");
  log.warn_on_rank("third");
  const auto text = content_of(path);
  const auto first = text.find(" first 1\n"), second = text.find(" warning: second\n"),
             third = text.find(" warning: rank 1: third\n");
  EXPECT_TRUE(first < second && second < third && third != text.npos) << text;
  char printed[100] = "";
  std::rewind(out);
  EXPECT_STREQ(std::fgets(printed, sizeof printed, out), "warning: rank 1: third\n") << "rank 0 prints the others";
  EXPECT_EQ(std::fgets(printed, sizeof printed, out), nullptr);
  std::fclose(out);
  EXPECT_THROW(LogFile().open(path + "/below-a-file.log"), CheckpointError);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace trireme
