// Initialization and finalization of Open MPI.
#include <fmt/format.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cstdlib>
#include <exception>

#include "core/base/error.h"
#include "core/comm/engine/engine_transport.h"
#include "core/comm/mpi/wire.h"

namespace trireme::comm {
namespace {

/// Open MPI moves large messages between processes of a host with process_vm_readv. Containers often forbid that call,
/// and Open MPI notices only when a message fails; so it is tested first, on this process itself.
void avoid_forbidden_copies() {
  char from = 1, to = 0;
  const iovec local{&to, 1}, remote{&from, 1};
  if (process_vm_readv(getpid(), &local, 1, &remote, 1, 0) != 1)
    setenv("OMPI_MCA_btl_vader_single_copy_mechanism", "none", /*overwrite=*/0);
}

/// Under srun, Open MPI needs PMI to find its peers; without it, MPI_Init ends the process.
void check_srun(const LaunchInfo& info) {
  if (info.launcher != Launcher::srun) return;
  for (const char* name : {"PMIX_RANK", "PMIX_NAMESPACE", "PMI_RANK", "PMI_FD"})
    if (std::getenv(name) != nullptr) return;
  throw CommError(
      fmt::format("srun started {} ranks without a way for MPI to connect them (no PMIX_ or PMI_ variables); start "
                  "with srun --mpi=pmix, or with mpirun inside the allocation",
                  info.size));
}

class MpiTransport final : public engine::EngineTransport {
 public:
  MpiTransport(const LaunchInfo& info, const OperationSettings& settings) : EngineTransport(settings) {
    int initialized = 0, provided = MPI_THREAD_SINGLE;
    MPI_Initialized(&initialized);
    if (initialized != 0) {
      MPI_Query_thread(&provided);
    } else {
      check_srun(info);
      avoid_forbidden_copies();
      MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided);
      finalize_ = true;
    }
    if (provided < MPI_THREAD_SERIALIZED)
      throw CommError(
          "MPI was started without thread support; call MPI_Init_thread with MPI_THREAD_SERIALIZED or more");
    MPI_Comm comm = MPI_COMM_NULL;
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    auto world = mpi::channel_of(comm);
    check_world(info, world);
    void* limit = nullptr;
    int found = 0;
    MPI_Comm_get_attr(comm, MPI_TAG_UB, &limit, &found);
    const int largest = found != 0 ? *static_cast<int*>(limit) : 32767;  // the minimum that the standard guarantees
    world.tag_half = largest / 2;
    open(std::make_shared<mpi::MpiWire>(), std::move(world));
  }

  ~MpiTransport() override {
    close();
    // While an error unwinds this rank, the others may never reach this point, and MPI_Finalize would wait for them for
    // ever.
    if (finalize_ && std::uncaught_exceptions() <= exceptions_at_start_) {
      MPI_Finalize();
      release();
    }
  }

  [[nodiscard]] std::string name() const override {
    return fmt::format("Open MPI {}.{}.{}", OMPI_MAJOR_VERSION, OMPI_MINOR_VERSION, OMPI_RELEASE_VERSION);
  }

  void abort(int exit_code) noexcept override { MPI_Abort(MPI_COMM_WORLD, exit_code); }

 private:
  void check_world(const LaunchInfo& info, const engine::Channel& world) const {
    if (info.size == world.size && info.rank == world.rank) return;
    const auto text = fmt::format(
        "{} says rank {} of {}, but MPI sees rank {} of {}; {}", info.launcher == Launcher::srun ? "srun" : "mpirun",
        info.rank, info.size, world.rank, world.size,
        info.launcher == Launcher::srun ? "start with srun --mpi=pmix, or with mpirun inside the allocation"
                                        : "is another MPI's mpirun first on PATH than the one Trireme was built with?");
    if (finalize_) MPI_Finalize();
    throw CommError(text);
  }

  bool finalize_ = false;
  int exceptions_at_start_ = std::uncaught_exceptions();
};

}  // namespace

std::unique_ptr<CpuTransport> start_mpi(const LaunchInfo& info, const OperationSettings& settings) {
  return std::make_unique<MpiTransport>(info, settings);
}

}  // namespace trireme::comm
