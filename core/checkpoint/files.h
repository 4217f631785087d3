// Files and folders that appear whole or not at all.
//
// A file is written under a temporary name beside its own, synced, renamed, and its folder synced: after a crash at any
// point the old file or the new one is there. A failure (full disk, quota, permission) throws a CheckpointError that
// says what, where and how many bytes were needed, and leaves nothing behind.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace trireme::checkpoint {

/// What a file holds, for a manifest.
struct FileDigest {
  std::uint64_t bytes = 0;
  std::uint32_t crc32 = 0;
  friend bool operator==(const FileDigest&, const FileDigest&) = default;
};

/// One file on its way. Destroyed before commit(): nothing of it remains.
class FileWriter {
 public:
  /// `expected`: its size when known, else 0: the space is asked for at once, so that a full disk is told before
  /// minutes of writing.
  explicit FileWriter(std::string path, std::uint64_t expected = 0);
  ~FileWriter();
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;

  void write(const void* data, std::size_t size);
  /// Syncs, renames, syncs the folder.
  FileDigest commit();

 private:
  [[noreturn]] void fail(const char* what, int error) const;

  std::string path_, temporary_;
  std::uint64_t expected_;
  FileDigest digest_;
  int file_ = -1;
};

FileDigest write_file(const std::string& path, std::string_view content);
/// @throws CheckpointError when it cannot be read.
std::string read_file(const std::string& path);
/// Size and sum of a file as it is now.
FileDigest digest_file(const std::string& path);

/// Makes `to` another name of the file `from`, whole or not at all, replacing what is there; where the file system
/// cannot link, a copy. Neither is ever written in place afterwards: FileWriter replaces files.
void link_file(const std::string& from, const std::string& to);

/// Whether `path` is `folder` or lies in it, there or not, links followed.
bool lies_in(const std::string& path, const std::string& folder);
/// Makes a folder and those above it.
void make_folder(const std::string& path);
/// Renames a finished folder `from` to `to` and syncs the parent. A folder that is already there is exchanged for the
/// new one in one step, then removed.
void publish_folder(const std::string& from, const std::string& to);

}  // namespace trireme::checkpoint
