// Files and folders are written completely or not at all: checksums, replacement, full disks and size limits.
#include "core/base/files/files.h"

#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <sys/mount.h>

#include "core/base/error.h"
#include "core/base/files/digest.h"
#include "core/base/files/output_folder.h"
#include "core/checkpoint/formats/safetensors.h"
#include "core/train/report/event_file.h"
#include "tests/file_limit.h"
#include "tests/unit/checkpoint/folder.h"

namespace trireme::checkpoint {
namespace {

TEST(Crc32, KnownSumsAndPieces) {
  EXPECT_EQ(crc32(0, "123456789", 9), 0xCBF43926U);  // the standard's check value
  EXPECT_EQ(crc32(0, "", 0), 0U);
  EXPECT_EQ(train::crc32c("123456789"), 0xE3069283U);
  std::string text;
  for (int i = 0; i < 1000; ++i) text.push_back(static_cast<char>(i * 7));
  const auto whole = crc32(0, text.data(), text.size());
  for (const std::size_t cut : {1u, 7u, 8u, 9u, 500u, 999u})
    EXPECT_EQ(crc32(crc32(0, text.data(), cut), text.data() + cut, text.size() - cut), whole);
  text[501] = static_cast<char>(text[501] ^ 1);
  EXPECT_NE(crc32(0, text.data(), text.size()), whole);
}

TEST(Files, WrittenReplacedAndRead) {
  const TestFolder folder;
  const auto path = folder / "a.json";
  const std::string large(5'000'000, 'x');
  for (const std::string& content : {std::string("first"), std::string(), large, std::string("zero\0in it", 10)}) {
    const auto digest = write_file(path, content);
    EXPECT_EQ(digest.bytes, content.size());
    EXPECT_EQ(digest.crc32, crc32(0, content.data(), content.size()));
    EXPECT_EQ(digest.sums.size(), content.size() > 65536 ? content.size() / digest.block_bytes + 1 : 0);
    EXPECT_EQ(digest_file(path), digest);
    EXPECT_EQ(read_file(path), content);
    EXPECT_EQ(names_in(folder.path()), std::vector<std::string>{"a.json"});
  }
  { FileWriter dropped(folder / "b"), replaced(folder / "a.json"); }  // never committed
  EXPECT_EQ(names_in(folder.path()), std::vector<std::string>{"a.json"});
  expect_error([&] { write_file(folder / "none/a", "x"); }, {folder / "none/a", "No such file", "1 B"});
  expect_error([&] { write_file(path + "/a", "x"); }, {path + "/a", "Not a directory", path + " is a file"});
  expect_error([&] { (void)read_file(folder / "none"); }, {folder / "none", "No such file"});
  expect_error([&] { make_folder(path + "/below"); }, {"a.json/below", path + " is a file"});
}

TEST(Files, TemporaryFilesOfTheDeadAreRemoved) {
  const TestFolder folder;
  put_bytes(folder / "a.json.host.4711.tmp", "half of it");
  put_bytes(folder / "notes.tmp", "a user's");
  std::filesystem::create_directory(folder / "step-1.2.tmp");
  put_bytes(folder / "a.json", "whole");
  remove_temporary_files(folder.path());
  EXPECT_EQ(names_in(folder.path()), (std::vector<std::string>{"a.json", "notes.tmp", "step-1.2.tmp"}));
  remove_temporary_files(folder / "none");
}

TEST(Files, AnOutputFolderHasOneOwner) {
  const TestFolder folder;
  const auto path = folder / "deep/out";
  {
    const OutputFolder first(path), of_another_rank(path, 1);
    EXPECT_THROW(OutputFolder second(path), ConfigError);
    EXPECT_EQ(first.path(), path);
  }
  const OutputFolder next(path);
  EXPECT_THROW(OutputFolder none(""), UsageError);
  write_file(folder / "file", "x");
  expect_error([&] { OutputFolder below(folder / "file/out"); }, {"file/out", folder / "file" + " is a file"});
  std::filesystem::create_directories(folder / "taken/.lock");
  expect_error([&] { OutputFolder taken(folder / "taken"); }, {"taken/.lock: cannot be written"});
}

TEST(Files, FolderPublished) {
  const TestFolder folder;
  make_folder(folder / "deep/new.tmp");
  write_file(folder / "deep/new.tmp/a", "1");
  EXPECT_EQ(publish_folder(folder / "deep/new.tmp", folder / "deep/new", folder / "deep/old"), "");
  EXPECT_EQ(names_in(folder / "deep"), std::vector<std::string>{"new"});
  // A published folder replaces an existing one completely.
  make_folder(folder / "deep/new.tmp");
  write_file(folder / "deep/new.tmp/b", "2");
  EXPECT_EQ(publish_folder(folder / "deep/new.tmp", folder / "deep/new", folder / "deep/old"), "");
  EXPECT_EQ(names_in(folder / "deep"), std::vector<std::string>{"new"});
  EXPECT_EQ(names_in(folder / "deep/new"), std::vector<std::string>{"b"});
}

/// A failed write must leave no file behind, and must not change an existing one.
void expect_nothing_changes(const std::string& folder, const std::vector<std::string>& says) {
  ASSERT_EQ(names_in(folder), std::vector<std::string>{"old"});
  const std::string big(3'000'000, 'x');
  expect_error([&] { write_file(folder + "/new", big); }, says);
  expect_error([&] { write_file(folder + "/old", big); }, says);
  expect_error(  // without a size known in advance, the write itself must fail cleanly
      [&] {
        FileWriter file(folder + "/unknown");
        for (int i = 0; i < 100; ++i) file.write(big.data(), big.size() / 10);
        file.commit();
      },
      {says[0]});
  expect_error([&] { write_safetensors(folder + "/new", {{"w", at::zeros({750'000})}}); }, says);
  EXPECT_EQ(names_in(folder), std::vector<std::string>{"old"});
  EXPECT_EQ(read_file(folder + "/old"), "small");
}

TEST(FullDisk, FileSizeLimit) {
  const TestFolder folder;
  write_file(folder / "old", "small");
  const tests::FileLimit full(1 << 20);
  expect_nothing_changes(folder.path(), {"File too large", "it needs 2.9 MiB", "ulimit -f"});
}

TEST(FullDisk, SmallFileSystem) {
  const TestFolder folder;
  if (::mount("none", folder.path().c_str(), "tmpfs", 0, "size=1m") != 0)
    GTEST_SKIP() << "no file system can be mounted here: a full disk was not tested (the size limit was)";
  write_file(folder / "old", "small");
  expect_nothing_changes(folder.path(), {"No space left on device", "it needs 2.9 MiB", "are free there"});
  ::umount2(folder.path().c_str(), MNT_DETACH);
}

}  // namespace
}  // namespace trireme::checkpoint
