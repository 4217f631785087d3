// A new folder that is removed with its contents at the end; what killed processes have left is removed at the start
// (core/base/owned_folder.h).
#pragma once

#include <string>

#include "core/base/owned_folder.h"

namespace trireme::apps {

/// The folder for temporary files: TMPDIR, TEMP or TMP, else /tmp.
std::string temporary_root();

class TemporaryFolder {
 public:
  /// Creates the folder in `parent`. @throws ConfigError, whose message ends with `remedy`, when it cannot be created
  TemporaryFolder(const std::string& parent, const std::string& remedy);
  [[nodiscard]] const std::string& path() const { return folder_.path(); }

 private:
  OwnedFolder folder_;
};

}  // namespace trireme::apps
