// A copy of the front program beside a worker script that the test supplies, such as one that records each start.
#pragma once

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "tests/failure/process.h"

namespace trireme::tests {

/// A copy of the front in a temporary folder, with a worker that the test supplies.
class FrontBeside {
 public:
  /// `script` returns the worker's text, for sh. Its arguments are this folder and the path of the built worker.
  explicit FrontBeside(const std::function<std::string(const std::string& folder, const std::string& worker)>& script) {
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

class CountedFront : public FrontBeside {
 public:
  CountedFront()
      : FrontBeside([](const std::string& folder, const std::string& worker) {
          return "echo \"${RANK-none}\" >>" + folder + "/starts\nexec " + worker + " \"$@\"\n";
        }) {}
  /// The ranks of the workers that were started since the last call; "none" for a worker that is not a rank.
  [[nodiscard]] std::vector<std::string> started() const {
    std::vector<std::string> out;
    const auto starts = folder().path() + "/starts";
    std::ifstream file(starts);
    for (std::string line; std::getline(file, line);) out.push_back(line);
    std::filesystem::remove(starts);
    return out;
  }
};

}  // namespace trireme::tests
