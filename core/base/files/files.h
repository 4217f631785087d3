// Atomic writes of files and folders, and their error messages.
//
// A file is written under a temporary name next to the final one, synced and renamed, and its folder is synced. After a
// crash at any point either the old or the new file is there. A failure (full disk, quota, permission) throws a
// CheckpointError that says what failed, where, and how many bytes were needed, and leaves no partial file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/files/digest.h"

namespace trireme {

/// Writes one file. If it is destroyed before commit(), nothing of the file remains.
class FileWriter {
 public:
  /// `expected`: the size if known, else 0. The space is reserved at once, so a full disk is reported early.
  explicit FileWriter(std::string path, std::uint64_t expected = 0);
  ~FileWriter();
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;

  void write(const void* data, std::size_t size);
  /// Syncs the file, renames it, and syncs the folder.
  FileDigest commit();

 private:
  [[noreturn]] void fail(const char* what, int error) const;

  std::string path_, temporary_;
  std::uint64_t expected_, needed_ = 0;  ///< bytes
  Digester digester_;
  int file_ = -1;
};

FileDigest write_file(const std::string& path, std::string_view content);
/// @throws CheckpointError when it cannot be read.
std::string read_file(const std::string& path);
/// Size and checksums of an existing file.
FileDigest digest_file(const std::string& path);

/// Removes the temporary files that processes which died have left in the folder. No other process may write there now.
void remove_temporary_files(const std::string& folder);

/// Atomically makes `to` a copy of the file `from`, replacing an existing file.
void copy_file(const std::string& from, const std::string& to);
/// Atomically makes `to` a hard link to the file `from`, replacing an existing file; a copy if the file system has no
/// links. Neither file is modified in place afterwards, because FileWriter replaces files.
void link_file(const std::string& from, const std::string& to);

/// Whether `path` is `folder` or is inside it. Neither needs to exist; symbolic links are followed.
bool lies_in(const std::string& path, const std::string& folder);
/// The path of a file in a folder.
std::string path_in(const std::string& folder, const std::string& name);
/// The names of all that the folder holds, sorted; none where it cannot be read.
std::vector<std::string> names_in(const std::string& folder);
/// The message about a write to a path that failed with this error number: "PATH: WHAT: the system's error; REMEDY".
std::string write_problem(const std::string& path, const char* what, int error);
/// Creates a folder and its parents.
void make_folder(const std::string& path);

/// Renames a folder whose files FileWriter has written. Returns "", or why the folder of `to` could not be synced then:
/// the new one has its name, but may lose it when the power fails. An existing folder is exchanged for the new one
/// atomically, and removed when the new name is on the disk. Where the file system cannot exchange two names, the
/// existing one is first renamed to `aside`, in place of what is there: after a crash in that moment,
/// checkpoint::restore_replaced() or checkpoint::ModelFolder gives its name back.
/// @throws CheckpointError when it cannot be renamed; nothing has changed then
[[nodiscard]] std::string publish_folder(const std::string& from, const std::string& to, const std::string& aside);

}  // namespace trireme
