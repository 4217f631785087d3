// A new folder that is removed with its contents at the end.
#pragma once

#include <string>

namespace trireme::apps {

/// The folder for temporary files: TMPDIR, TEMP or TMP, else /tmp.
std::string temporary_root();

class TemporaryFolder {
 public:
  /// Creates the folder in `parent`. @throws ConfigError, whose message ends with `remedy`, when it cannot be created
  explicit TemporaryFolder(const std::string& parent, const std::string& remedy);
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace trireme::apps
