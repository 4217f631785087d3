// The front program in a folder of its own, beside a worker of the test's, such as one that writes down each of its
// starts.
#pragma once

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "tests/failure/process.h"

namespace trireme::tests {

/// A copy of the front with a worker of its own.
class FrontBeside {
 public:
  /// `script`: the worker, for sh. It can use folder().
  explicit FrontBeside(const std::function<std::string(const std::string& folder, const std::string& worker)>& script) {
    namespace fs = std::filesystem;
    fs::create_directories(folder_.path() + "/bin");
    fs::copy_file(TRIREME_COMMAND, command());
    const auto built = fs::path(TRIREME_COMMAND).parent_path().parent_path();
    fs::create_directory_symlink(built / "share", folder_.path() + "/share");  // where it learns which LibTorch it has
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
          return "echo \"${OMPI_COMM_WORLD_RANK-none}\" >>" + folder + "/starts\nexec " + worker + " \"$@\"\n";
        }) {}
  /// Since the last call: of each worker that was started the number of its rank, "none" for one that is no rank.
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
