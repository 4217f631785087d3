// The command line of mpirun for ranks on this machine, and the folders of its files.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "apps/front/temporary_folder.h"

namespace trireme::apps {

/// The number of cores that this process may run on.
int cores();

/// Open MPI's folders for a run, which it cannot remove itself if it is killed.
class MpiFiles {
 public:
  /// @throws ConfigError when there is too little space for the ranks: Open MPI would hang
  explicit MpiFiles(std::int64_t ranks);
  [[nodiscard]] const std::string& folder() const { return folder_.path(); }
  /// The folder in shared memory; "" if /dev/shm is not writable.
  [[nodiscard]] std::string shared() const { return shared_ ? shared_->path() : ""; }

 private:
  TemporaryFolder folder_;
  std::optional<TemporaryFolder> shared_;
};

/// mpirun, with the options that `ranks` ranks of `program` need on this machine. What the user has set in OMPI_MCA_*
/// stays. @throws ConfigError when there is no mpirun
std::vector<std::string> mpirun_command(std::int64_t ranks, const MpiFiles& files,
                                        const std::vector<std::string>& program);

}  // namespace trireme::apps
