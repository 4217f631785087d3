// A temporary folder with files, such as a part of /sys, for code that takes the root of a file system.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>

namespace trireme::tests {

class FileTree {
 public:
  /// `files`: content by path below the folder.
  explicit FileTree(const std::map<std::string, std::string>& files) {
    for (const auto& [name, content] : files) {
      std::filesystem::create_directories((path_ / name).parent_path());
      std::ofstream(path_ / name) << content;
    }
  }
  ~FileTree() { std::filesystem::remove_all(path_); }
  FileTree(const FileTree&) = delete;
  FileTree& operator=(const FileTree&) = delete;
  [[nodiscard]] std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_ = [] {
    auto name = (std::filesystem::temp_directory_path() / "trireme_files_XXXXXX").string();
    return std::filesystem::path(mkdtemp(name.data()));
  }();
};

}  // namespace trireme::tests
