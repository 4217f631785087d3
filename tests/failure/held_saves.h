// Holds a run at one of its saves, so that it cannot end before a test has killed it, however late the test comes.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <utility>

#include "tests/command/small_run.h"

namespace trireme::tests {

/// The ranks of a run that is started with options() wait where they would write to its checkpoints, as on a disk that
/// hangs, once checkpoints/`since` exists ("": from the start), until release().
class HeldSaves {
 public:
  explicit HeldSaves(const SmallRun& run, const std::string& since = "") : link_(run.folder.path() + "/held") {
    const auto checkpoints = run.dir() + "/checkpoints";
    // The ranks look for a file behind this link: without the link there is none.
    std::filesystem::create_directory_symlink(since.empty() ? run.folder.path() : checkpoints, link_);
    options_.environment = {std::string("LD_PRELOAD=") + TRIREME_FAULTS, "FAULT_FOLDER=" + checkpoints,
                            "FAULT_WAIT=" + link_ + "/" + since};
  }
  /// `meanwhile` is called while the run trains, or waits.
  [[nodiscard]] ProcessOptions options(std::function<void(pid_t)> meanwhile) const {
    auto options = options_;
    options.meanwhile = std::move(meanwhile);
    return options;
  }
  void release() const { std::filesystem::remove(link_); }

 private:
  std::string link_;
  ProcessOptions options_;
};

}  // namespace trireme::tests
