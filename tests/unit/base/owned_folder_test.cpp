// A folder of temporary files goes with its owner: at its end, or, if that was killed, at the next one's start.
#include "core/base/owned_folder.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>

namespace trireme {
namespace {

namespace fs = std::filesystem;

class OwnedFolders : public testing::Test {
 protected:
  OwnedFolders() {
    auto name = (fs::path(testing::TempDir()) / "owned-folder-XXXXXX").string();
    base_ = mkdtemp(name.data());
  }
  ~OwnedFolders() override { fs::remove_all(base_); }
  /// A process that owns a folder with a file, until it is killed.
  [[nodiscard]] pid_t owner(const std::string& prefix) const {
    int ends[2];
    EXPECT_EQ(pipe(ends), 0);
    const pid_t child = fork();
    if (child == 0) {
      const OwnedFolder own(base_, prefix);
      std::ofstream(own.path() + "/file") << "temporary";
      (void)!write(ends[1], "x", 1);
      for (;;) pause();
    }
    char byte = 0;
    EXPECT_EQ(read(ends[0], &byte, 1), 1);
    for (const int end : ends) close(end);
    return child;
  }
  static void end(pid_t process) {
    kill(process, SIGKILL);
    waitpid(process, nullptr, 0);
  }
  [[nodiscard]] std::set<std::string> names() const {
    std::set<std::string> out;
    for (const auto& entry : fs::directory_iterator(base_)) out.insert(entry.path().filename());
    return out;
  }
  std::string base_;
};

TEST_F(OwnedFolders, EndWithTheirOwnerOrBeforeTheNextOne) {
  {
    const OwnedFolder own(base_, "part");
    EXPECT_TRUE(is_own_folder(own.path()));
    EXPECT_TRUE(own.path().starts_with(base_ + "/part-" + std::to_string(geteuid()) + "-")) << own.path();
  }
  EXPECT_TRUE(names().empty());
  const pid_t lives = owner("part"), killed = owner("part"), other = owner("other");
  end(killed);
  end(other);
  EXPECT_EQ(names().size(), 3U);
  const std::string mine = base_ + "/part-" + std::to_string(geteuid()) + "-mine", file = base_ + "/part-file";
  fs::create_directories(mine);
  std::ofstream(file) << "mine";
  { const OwnedFolder next(base_, "part"); }
  EXPECT_EQ(names().size(), 4U) << "of the living process, of another program, and what only looks alike";
  EXPECT_TRUE(fs::exists(mine) && fs::exists(file));
  end(lives);
}

TEST_F(OwnedFolders, SayWhyThereIsNone) {
  const OwnedFolder none(base_ + "/nowhere", "part");
  EXPECT_EQ(none.path(), "");
  EXPECT_EQ(none.error(), ENOENT);
}

}  // namespace
}  // namespace trireme
