#include "tests/ranks/own_wire.h"

#include <bit>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "core/comm/meeting.h"
#include "core/comm/mpi/wire.h"
#include "core/comm/native/wire.h"
#include "tests/ranks/world.h"

namespace trireme::tests {
namespace {
constexpr std::chrono::seconds kPatience{60};
}

bool over_mpi() { return world().transport().starts_with("Open MPI"); }

OwnWire::OwnWire(comm::engine::Channel& channel) {
  const auto& info = world().info();
  if (over_mpi()) {
    MPI_Comm comm = MPI_COMM_NULL;
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    channel.context = context_ = comm::mpi::channel_of(comm).context;
    wire = std::make_shared<comm::mpi::MpiWire>();
  } else {
    const auto store = comm::launcher_store(info, kPatience);
    wire = std::make_shared<comm::native::NativeWire>(comm::native::meet(info, *store));
  }
}

OwnWire::~OwnWire() {
  if (!over_mpi()) return;
  auto comm = std::bit_cast<MPI_Comm>(context_);
  MPI_Comm_free(&comm);
}

std::unique_ptr<comm::CpuTransport> own_transport() {
  const auto& info = world().info();
  if (over_mpi()) return comm::start_mpi(info, {kPatience, kPatience});
  return comm::start_native(info, *comm::launcher_store(info, kPatience), {kPatience, kPatience});
}

}  // namespace trireme::tests
