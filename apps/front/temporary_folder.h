// A new folder that is removed, with all that is in it, at the end.
#pragma once

#include <string>

namespace trireme::apps {

/// Where temporary files go: TMPDIR, TEMP or TMP, else /tmp.
std::string temporary_root();

class TemporaryFolder {
 public:
  /// In `parent`. @throws ConfigError when it cannot be made; `remedy` says what to do then
  explicit TemporaryFolder(const std::string& parent, const std::string& remedy);
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace trireme::apps
