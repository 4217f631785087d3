// The index of an image folder: its size, what it says, and when the cached one is used.
#include "datasets/folder_index.h"

#include <ATen/ops/equal.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/random.h"
#include "datasets/image.h"
#include "datasets/image_folder.h"
#include "tests/unit/datasets/folder.h"

namespace trireme::data {
namespace {

namespace fs = std::filesystem;
using datasets::IndexOrigin;
using datasets::OpenedIndex;
using testing_tools::Folder;
using testing_tools::message_of;

/// A folder of 3,000 files, larger than datasets::kCachedFolderFiles, and a cache folder of its own.
class FolderIndexTest : public testing::Test {
 protected:
  /// Thousands of small files are made: in memory, where the machine has such a folder.
  static void SetUpTestSuite() {
    is_set_ = ::getenv("TMPDIR") == nullptr && ::access("/dev/shm", W_OK) == 0;
    if (is_set_) ::setenv("TMPDIR", "/dev/shm", 1);
  }
  static void TearDownTestSuite() {
    if (is_set_) ::unsetenv("TMPDIR");
  }
  FolderIndexTest() {
    const char* before = ::getenv("XDG_CACHE_HOME");
    if (before != nullptr) cache_before_ = before;
    ::setenv("XDG_CACHE_HOME", folder_.path("cache").c_str(), 1);
    for (const auto& [name, files] : kClasses)
      for (int i = 0; i < files; ++i) folder_.write(fmt::format("set/{}/{:06}.JPEG", name, i), "image");
    folder_.write("set/train/b/notes.txt", "");
    age_folders();
  }
  ~FolderIndexTest() override {
    cache_before_ ? ::setenv("XDG_CACHE_HOME", cache_before_->c_str(), 1) : ::unsetenv("XDG_CACHE_HOME");
  }

  /// Gives all folders the same modification time, an hour ago.
  void age_folders() const {
    fs::last_write_time(set(), hour_ago_);
    for (const auto& entry : fs::recursive_directory_iterator(set()))
      if (entry.is_directory()) fs::last_write_time(entry.path(), hour_ago_);
  }
  [[nodiscard]] std::string set(const std::string& name = "") const { return folder_.path("set/" + name); }
  OpenedIndex open(bool skip_bad = false) const {
    return datasets::open_folder_index(folder_.path("set"), skip_bad, Log(1));
  }
  [[nodiscard]] std::string cached_file() const {
    std::vector<std::string> files;
    std::error_code none;
    for (const auto& entry : fs::directory_iterator(folder_.path("cache/trireme/index"), none))
      files.push_back(entry.path().string());
    EXPECT_LE(files.size(), 1U);
    return files.empty() ? "" : files.front();
  }

  static constexpr std::pair<const char*, int> kClasses[] = {
      {"train/a", 1500}, {"train/b", 1000}, {"train/c", 100}, {"validation/a", 250}, {"validation/c", 150}};
  Folder folder_;

 private:
  const fs::file_time_type hour_ago_ = fs::file_time_type::clock::now() - std::chrono::hours(1);
  static inline bool is_set_ = false;  ///< TMPDIR, by this suite
  std::optional<std::string> cache_before_;
};

TEST_F(FolderIndexTest, TheSecondRunReadsItFromTheCache) {
  const auto first = open(), second = open();
  EXPECT_EQ(first.origin, IndexOrigin::listed);
  EXPECT_EQ(second.origin, IndexOrigin::cached);
  EXPECT_EQ(first.index->bytes(), second.index->bytes());
  const auto& index = *second.index;
  EXPECT_EQ(index.classes(), (std::vector<std::string>{"a", "b", "c"}));
  EXPECT_EQ(index.size(Split::train), 2600);
  EXPECT_EQ(index.size(Split::validation), 400);
  EXPECT_EQ(index.size(Split::test), 0);
  EXPECT_EQ(index.ignored_files(), 1);
  // Every file and label, and the digest that checkpoints of earlier runs hold.
  std::int64_t at[2] = {};
  std::uint64_t digest = 2600;
  for (const auto& [name, files] : kClasses) {
    const auto split = std::string(name).starts_with("train") ? Split::train : Split::validation;
    const std::int64_t label = std::string(name).back() - 'a';
    for (int i = 0; i < files; ++i) {
      auto& sample = at[static_cast<int>(split)];
      const auto file = fmt::format("{:06}.JPEG", i);
      ASSERT_EQ(index.file(split, sample), fmt::format("{}/{}", name, file));
      ASSERT_EQ(index.label(split, sample), label);
      ++sample;
      if (split == Split::train) digest = random::mix(digest + static_cast<std::uint64_t>(label), random::hash(file));
    }
  }
  EXPECT_EQ(index.digest(), fmt::format("{:016x}", digest));
}

TEST_F(FolderIndexTest, AFileCostsItsNameAndFourBytes) {
  const auto files = 3000U, name = 11U, folders = 8U;
  EXPECT_LE(open().index->bytes().size(), files * (name + 4) + folders * 60 + 100);
}

TEST_F(FolderIndexTest, ASourceReadsTheFilesOfItsSplit) {
  const auto image = testing_tools::ramp(5, 4);
  datasets::write_png(set("validation/c/000007.JPEG"), image);
  const auto source = datasets::folder_source(open().index, Split::validation, set());
  EXPECT_EQ(source->size(), 400);
  EXPECT_TRUE(at::equal(source->load(257).pixels, image));
  EXPECT_EQ(source->label(257), 2);
  EXPECT_NE(message_of([&] { source->load(399); }).find("validation/c/000149.JPEG: no image, by its first bytes"),
            std::string::npos);
}

TEST_F(FolderIndexTest, AChangeOfAnyFolderIsNoticed) {
  const struct {
    const char* what;
    std::function<void()> change;
  } changes[] = {
      {"an added file", [&] { folder_.write("set/train/a/new.png", "image"); }},
      {"a removed file", [&] { fs::remove(set("validation/c/000001.JPEG")); }},
      {"a renamed file", [&] { fs::rename(set("train/b/000001.JPEG"), set("train/b/x.JPEG")); }},
      {"a renamed class",
       [&] {
         fs::rename(set("train/b"), set("train/d"));
         age_folders();
         fs::last_write_time(set("train"), fs::file_time_type::clock::now());
       }},
      {"a new class", [&] { folder_.write("set/train/e/x.png", "image"); }},
      {"a new split", [&] { folder_.write("set/test/a/x.png", "image"); }},
      {"another folder of the same name and time",
       [&] {
         fs::copy(set("train/a"), folder_.path("copy"));
         fs::rename(set("train/a"), folder_.path("old"));
         fs::rename(folder_.path("copy"), set("train/a"));
         age_folders();
       }},
  };
  for (const auto& c : changes) {
    age_folders();
    open();
    ASSERT_EQ(open().origin, IndexOrigin::cached) << c.what;
    c.change();
    const auto got = open();
    EXPECT_EQ(got.origin, IndexOrigin::listed) << c.what;
    EXPECT_EQ(got.index->bytes(), datasets::list_image_folder(set(), false)->bytes()) << c.what;
  }
  age_folders();
  open();
  fs::remove_all(set("validation"));
  EXPECT_EQ(open().index->size(Split::validation), 0);
  fs::remove_all(set("train"));
  EXPECT_NE(message_of([&] { open(); }).find("the train split is missing"), std::string::npos);
}

TEST_F(FolderIndexTest, AFolderThatHasJustChangedIsNotCached) {
  // A file that is added within the clock's tick would not change the folder's time.
  fs::last_write_time(set("train/a"), fs::file_time_type::clock::now());
  open();
  EXPECT_EQ(cached_file(), "");
}

TEST_F(FolderIndexTest, ASmallFolderIsNotCached) {
  fs::remove_all(set("train/a"));
  fs::remove_all(set("validation/a"));
  age_folders();
  EXPECT_EQ(open().index->size(Split::train), 1100);
  EXPECT_EQ(cached_file(), "");
}

TEST_F(FolderIndexTest, ADamagedCacheIsReplaced) {
  const auto whole = open().index->bytes();
  const auto file = cached_file();
  const auto size = fs::file_size(file);
  const auto flip = [&](std::uintmax_t at) {
    std::fstream bytes(file, std::ios::in | std::ios::out | std::ios::binary);
    bytes.seekg(static_cast<std::streamoff>(at));
    const auto old = static_cast<char>(bytes.get());
    bytes.seekp(static_cast<std::streamoff>(at));
    bytes.put(static_cast<char>(old ^ 1));
  };
  const std::pair<const char*, std::function<void()>> damages[] = {
      {"the version", [&] { flip(8); }},
      {"a row", [&] { flip(120); }},
      {"a name", [&] { flip(size - 1); }},
      {"truncated", [&] { fs::resize_file(file, size / 2); }},
      {"empty", [&] { fs::resize_file(file, 0); }},
      {"a folder", [&] { fs::remove(file), fs::create_directories(file); }},
  };
  for (const auto& [what, damage] : damages) {
    damage();
    const auto got = open();
    EXPECT_EQ(got.origin, IndexOrigin::listed) << what;
    EXPECT_EQ(got.index->bytes(), whole) << what;
    if (fs::is_directory(file)) fs::remove(file), open();
    EXPECT_EQ(open().origin, IndexOrigin::cached) << what;
  }
  for (auto bytes : {std::string(), whole.substr(0, 40), whole + "x", std::string(whole.size(), '\0')})
    EXPECT_EQ(datasets::FolderIndex::parse(std::move(bytes)), nullptr);
}

TEST_F(FolderIndexTest, ACacheThatCannotBeWrittenIsANote) {
  folder_.write("cache", "a file");
  std::FILE* lines = std::tmpfile();
  for (int run = 0; run < 2; ++run)
    EXPECT_EQ(datasets::open_folder_index(set(), false, Log(0, lines)).origin, IndexOrigin::listed);
  std::rewind(lines);
  std::string text(4096, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), lines));
  std::fclose(lines);
  const auto run = fmt::format(
      "data: the list of files of {0} cannot be written to the user's cache folder; each run lists them again\n"
      "data: 1 file under {0} is no image by its name (.jpg, .jpeg, .png, .webp, .bmp, .gif, .tif, .tiff) and was "
      "ignored\n"
      "data: the validation split has no image of class \"b\"\n",
      set());
  EXPECT_EQ(text, run + run);
}

TEST_F(FolderIndexTest, FilesThatWereNotCheckedAreCheckedByARunThatNeedsThem) {
  folder_.write("set/train/c/empty.png", "");
  fs::create_symlink("nowhere", set("train/c/link.png"));
  age_folders();
  EXPECT_EQ(open(/*skip_bad=*/true).origin, IndexOrigin::listed);
  EXPECT_EQ(open(/*skip_bad=*/true).origin, IndexOrigin::cached);
  EXPECT_NE(message_of([&] { open(); }).find("train/c/empty.png: the file is empty; remove it, or set"),
            std::string::npos);
  fs::remove(set("train/c/empty.png"));
  EXPECT_NE(message_of([&] { open(); }).find("train/c/link.png: a link to a file that does not exist; remove it"),
            std::string::npos);
  fs::remove(set("train/c/link.png"));
  age_folders();
  EXPECT_EQ(open().origin, IndexOrigin::listed);
  EXPECT_EQ(open(/*skip_bad=*/true).origin, IndexOrigin::cached) << "more was checked than is asked for";
}

TEST_F(FolderIndexTest, TheOtherRanksOfAHostReceiveIt) {
  const auto as_rank = [&](int rank) {
    LaunchInfo info{Launcher::mpirun, rank, 2, rank, 2};
    info.job = fmt::format("folder index test {}", ::getpid());
    return datasets::open_folder_index(set(), false, Log(1), info);
  };
  const auto first = as_rank(0);
  fs::remove_all(folder_.path("cache"));
  const auto second = as_rank(1);
  EXPECT_EQ(second.origin, IndexOrigin::received);
  EXPECT_EQ(first.index->bytes(), second.index->bytes());
}

}  // namespace
}  // namespace trireme::data
