// AppendFile: a file to which whole records are added, for readers that follow it while it grows.
#pragma once

#include <cstdio>
#include <memory>
#include <string>
#include <string_view>

namespace trireme {

class AppendFile {
 public:
  /// Creates the file, or goes on at its end. @throws CheckpointError
  explicit AppendFile(std::string path);
  /// Adds a record at once, so that a reader or a crash rarely sees a part of it. One that cannot be written in whole
  /// is cut off again. @throws CheckpointError
  void add(std::string_view record);
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_;
};

}  // namespace trireme
