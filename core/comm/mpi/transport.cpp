// Initialization and finalization of Open MPI, and the communicators of groups.
#include "core/comm/transport.h"

#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <exception>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "core/base/error.h"
#include "core/comm/mpi/backend.h"
#include "core/comm/mpi/communicators.h"

namespace trireme::comm {
namespace {

using mpi::Channel;

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

class MpiTransport final : public Transport {
 public:
  MpiTransport(const LaunchInfo& info, std::chrono::milliseconds timeout) : timeout_(timeout) {
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
    world_.axis = "world";
    MPI_Comm_dup(MPI_COMM_WORLD, &world_.comm);
    MPI_Comm_set_errhandler(world_.comm, MPI_ERRORS_RETURN);
    MPI_Comm_rank(world_.comm, &world_.rank);
    MPI_Comm_size(world_.comm, &world_.size);
    check_world(info);
    for (int r = 0; r < world_.size; ++r) world_.ranks.push_back(r);
    void* limit = nullptr;
    int found = 0;
    MPI_Comm_get_attr(world_.comm, MPI_TAG_UB, &limit, &found);
    const int largest = found != 0 ? *static_cast<int*>(limit) : 32767;  // the minimum that the standard guarantees
    world_.tag_half = largest / 2;
    engine_ = std::make_shared<mpi::Engine>();
    agreement_ = c10::make_intrusive<mpi::Backend>(engine_, std::make_shared<Channel>(world_), timeout_);
    communicators_ = std::make_unique<mpi::Communicators>(engine_, world_, agreement_);
  }

  ~MpiTransport() override {
    communicators_.reset();
    agreement_.reset();
    engine_->stop();
    // While an error unwinds this rank, the others may never reach this point, and MPI_Finalize would wait for them for
    // ever.
    if (finalize_ && std::uncaught_exceptions() <= exceptions_at_start_) {
      MPI_Finalize();
      engine_->release();
    }
  }

  [[nodiscard]] std::string name() const override { return mpi_built_with(); }

  void join(c10d::ProcessGroup* group, const std::vector<int>& ranks, const std::string& axis) override {
    const auto channel = communicators_->take(ranks, axis);
    if (group == nullptr) return;
    const auto backend = c10::make_intrusive<mpi::Backend>(engine_, channel, timeout_);
    group->setBackend(c10::kCPU, c10d::ProcessGroup::BackendType::MPI, backend);
    if (stage_cuda_) group->setBackend(c10::kCUDA, c10d::ProcessGroup::BackendType::MPI, backend);
    group->setDefaultBackend(c10d::ProcessGroup::BackendType::MPI);
  }

  std::string decide(const std::string& mine, const Answer& answer) override {
    std::vector<at::Tensor> input{text_tensor(mine)}, answered{at::zeros({kLongest}, at::kByte)};
    std::vector<std::vector<at::Tensor>> all;
    if (world_.rank == 0) {
      all.emplace_back();
      for (int r = 0; r < world_.size; ++r) all[0].push_back(at::zeros({kLongest}, at::kByte));
    }
    agreement_->gather(all, input, {.asyncOp = false})->wait();
    if (world_.rank == 0) {
      std::vector<std::string> said;
      for (const auto& text : all[0]) said.emplace_back(static_cast<const char*>(text.data_ptr()));
      answered[0] = text_tensor(answer(said));
    }
    agreement_->broadcast(answered, {.asyncOp = false})->wait();
    return static_cast<const char*>(answered[0].data_ptr());
  }

  void stage_cuda(c10::Device device) override {
    stage_cuda_ = true;
    engine_->use(device);
  }

  void abort(int exit_code) noexcept override { MPI_Abort(MPI_COMM_WORLD, exit_code); }

 private:
  static constexpr std::int64_t kLongest = 512;
  static at::Tensor text_tensor(const std::string& text) {
    TRIREME_CHECK(static_cast<std::int64_t>(text.size()) < kLongest, "a message of {} bytes is too long", text.size());
    auto tensor = at::zeros({kLongest}, at::kByte);
    std::memcpy(tensor.data_ptr(), text.data(), text.size());
    return tensor;
  }

  void check_world(const LaunchInfo& info) {
    if (info.size == world_.size && info.rank == world_.rank) return;
    const auto text = fmt::format(
        "{} says rank {} of {}, but MPI sees rank {} of {}; {}", info.launcher == Launcher::srun ? "srun" : "mpirun",
        info.rank, info.size, world_.rank, world_.size,
        info.launcher == Launcher::srun ? "start with srun --mpi=pmix, or with mpirun inside the allocation"
                                        : "is another MPI's mpirun first on PATH than the one Trireme was built with?");
    if (finalize_) MPI_Finalize();
    throw CommError(text);
  }

  std::chrono::milliseconds timeout_;
  bool stage_cuda_ = false;
  bool finalize_ = false;
  int exceptions_at_start_ = std::uncaught_exceptions();
  Channel world_;
  std::shared_ptr<mpi::Engine> engine_;
  c10::intrusive_ptr<mpi::Backend> agreement_;  // over all ranks, for creating groups
  std::unique_ptr<mpi::Communicators> communicators_;
};

}  // namespace

std::unique_ptr<Transport> start_mpi(const LaunchInfo& info, std::chrono::milliseconds timeout) {
  return std::make_unique<MpiTransport>(info, timeout);
}

std::string mpi_built_with() {
  return fmt::format("Open MPI {}.{}.{}", OMPI_MAJOR_VERSION, OMPI_MINOR_VERSION, OMPI_RELEASE_VERSION);
}

}  // namespace trireme::comm
