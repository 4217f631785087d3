// The front program in a folder of its own, beside a worker that writes down each of its starts.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/failure/process.h"

namespace trireme::tests {

class CountedFront {
 public:
  CountedFront() {
    namespace fs = std::filesystem;
    fs::create_directories(folder_.path() + "/bin");
    fs::copy_file(TRIREME_COMMAND, command());
    const auto built = fs::path(TRIREME_COMMAND).parent_path().parent_path();
    fs::create_directory_symlink(built / "share", folder_.path() + "/share");  // where it learns which LibTorch it has
    const auto worker = built / "libexec/trireme/trireme-worker";
    const auto script =
        folder_.write("libexec/trireme/trireme-worker", "#!/bin/sh\necho \"${OMPI_COMM_WORLD_RANK-none}\" >>" +
                                                            starts() + "\nexec " + worker.string() + " \"$@\"\n");
    fs::permissions(script, fs::perms::owner_all);
  }
  [[nodiscard]] std::string command() const { return folder_.path() + "/bin/trireme"; }
  /// Since the last call: of each worker that was started the number of its rank, "none" for one that is no rank.
  [[nodiscard]] std::vector<std::string> started() const {
    std::vector<std::string> out;
    std::ifstream file(starts());
    for (std::string line; std::getline(file, line);) out.push_back(line);
    std::filesystem::remove(starts());
    return out;
  }

 private:
  [[nodiscard]] std::string starts() const { return folder_.path() + "/starts"; }
  TemporaryFolder folder_;
};

}  // namespace trireme::tests
