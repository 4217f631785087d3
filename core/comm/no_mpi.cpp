// Replaces core/comm/mpi when Trireme is built without MPI.
#include <fmt/format.h>

#include "core/base/error.h"
#include "core/comm/transport.h"

namespace trireme::comm {

std::unique_ptr<Transport> start_mpi(const LaunchInfo& info, std::chrono::milliseconds) {
  throw ConfigError(
      fmt::format("{}: this Trireme was built without MPI; build it with -DTRIREME_WITH_MPI=ON, run one "
                  "process, or use torchrun with one GPU a rank",
                  info.text()));
}

std::string mpi_built_with() { return "no MPI"; }

}  // namespace trireme::comm
