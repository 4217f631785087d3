// A folder for the temporary files of this process and of those that it starts, removed with its contents at the end.
// Uses nothing of LibTorch.
//
// The owner holds a lock on its folder, which the system releases when the process ends, however it does. The next
// OwnedFolder of the same user, place and prefix removes the folders whose lock nobody holds: those of processes that
// were killed. Process numbers, which are used again and mean nothing in another container, do not matter.
#pragma once

#include <string>

#include "core/base/file_descriptor.h"

namespace trireme {

class OwnedFolder {
 public:
  /// Removes what killed processes have left, then makes PARENT/PREFIX-UID-XXXXXX, which only this user may enter.
  OwnedFolder(const std::string& parent, const std::string& prefix);
  ~OwnedFolder();
  OwnedFolder(const OwnedFolder&) = delete;
  OwnedFolder& operator=(const OwnedFolder&) = delete;

  /// "" when no folder can be made there: error() is then the reason, as errno has it.
  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] int error() const { return error_; }

 private:
  bool lock();
  std::string path_;
  FileDescriptor lock_;
  int error_ = 0;
};

/// Whether it is a folder of this user, which nobody else may enter.
bool is_own_folder(const std::string& path);

/// Whether the path still names the open folder; true when the system cannot tell.
bool is_same_folder(const FileDescriptor& folder, const std::string& path);

}  // namespace trireme
