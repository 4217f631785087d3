// Replaces core/comm/mpi when Trireme is built without MPI.
#include <fmt/format.h>

#include "core/base/error.h"
#include "core/comm/transport.h"

namespace trireme::comm {

std::unique_ptr<CpuTransport> start_mpi(const LaunchInfo& info, const OperationSettings&) {
  throw ConfigError(
      fmt::format("{}: this Trireme was built without MPI; build with -DTRIREME_WITH_MPI=ON, or start the ranks with: "
                  "trireme launch -n {}, or with torchrun, which for several hosts need a GPU for each rank",
                  info.text(), info.size));
}

}  // namespace trireme::comm
