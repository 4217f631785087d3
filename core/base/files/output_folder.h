// The folder that receives a program's results.
#pragma once

#include <string>

#include "core/base/file_descriptor.h"

namespace trireme {

/// Creates the folder and its parents. While the object exists, no other one has the same folder, in any process: the
/// lock is that of the file .lock in it, which the system releases when the process ends. Made at a program's start, it
/// reports a folder that cannot be written before any work is done.
class OutputFolder {
 public:
  /// Only rank 0 acts; on other ranks the object does nothing. @throws CheckpointError when the folder cannot be
  /// written, ConfigError when another run writes to it
  explicit OutputFolder(std::string path, int rank = 0);

  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
  FileDescriptor lock_;
};

}  // namespace trireme
