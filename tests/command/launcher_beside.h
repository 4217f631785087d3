// A copy of the launcher beside a worker script that the test supplies, such as one that dies when it starts.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "tests/command/process.h"

namespace trireme::tests {

/// A copy of the launcher in a temporary folder, with a worker that the test supplies.
class LauncherBeside {
 public:
  /// `script` returns the worker's text, for sh. Its arguments are this folder and the path of the built worker.
  explicit LauncherBeside(
      const std::function<std::string(const std::string& folder, const std::string& worker)>& script) {
    namespace fs = std::filesystem;
    fs::create_directories(folder_.path() + "/bin");
    fs::copy_file(TRIREME_COMMAND, command());
    const auto built = fs::path(TRIREME_COMMAND).parent_path().parent_path();
    fs::create_directory_symlink(built / "share", folder_.path() + "/share");  // contains the path of LibTorch
    const auto file =
        folder_.write("libexec/trireme/trireme-worker",
                      "#!/bin/sh\n" + script(folder_.path(), (built / "libexec/trireme/trireme-worker").string()));
    fs::permissions(file, fs::perms::owner_all);
  }
  [[nodiscard]] std::string command() const { return folder_.path() + "/bin/trireme"; }
  [[nodiscard]] const TemporaryFolder& folder() const { return folder_; }

 private:
  TemporaryFolder folder_;
};

}  // namespace trireme::tests
