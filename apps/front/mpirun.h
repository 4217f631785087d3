// The command line of mpirun, and the folders of its files.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "apps/front/hosts.h"
#include "apps/front/temporary_folder.h"

namespace trireme::apps {

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

/// The mpirun of a bundle, else of the MPI that Trireme was built with, else the first one on PATH; "" if there is none
/// or Trireme was built without MPI.
std::string find_mpirun();

/// Where mpirun starts ranks; no hosts: on this machine.
struct MpiHosts {
  std::vector<Host> hosts{};
  std::vector<std::string> shell{};  ///< the remote shell; empty: Open MPI's own choice
};

/// mpirun, with the options that `ranks` ranks of `program` need. What the user has set in OMPI_MCA_* stays. To be
/// called only if there is an mpirun.
std::vector<std::string> mpirun_command(std::int64_t ranks, const MpiFiles& files,
                                        const std::vector<std::string>& program, const MpiHosts& hosts = {});

}  // namespace trireme::apps
