// Starting and ending Open MPI, and the communicators of groups.
#include "core/comm/transport.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <exception>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "core/base/error.h"
#include "core/comm/mpi/backend.h"

namespace trireme::comm {
namespace {

using mpi::Channel;

/// Open MPI moves large messages between processes of a host by process_vm_readv. Containers often forbid that call,
/// and Open MPI finds out only when a message fails; so it is tried first, on this process itself.
void avoid_forbidden_copies() {
  char from = 1, to = 0;
  const iovec local{&to, 1}, remote{&from, 1};
  if (process_vm_readv(getpid(), &local, 1, &remote, 1, 0) != 1)
    setenv("OMPI_MCA_btl_vader_single_copy_mechanism", "none", /*overwrite=*/0);
}

/// Under srun, Open MPI finds its peers by PMI alone, and without it MPI_Init ends the process by itself.
void check_srun(const LaunchInfo& info) {
  if (info.launcher != Launcher::srun) return;
  for (const char* name : {"PMIX_RANK", "PMIX_NAMESPACE", "PMI_RANK", "PMI_FD"})
    if (std::getenv(name) != nullptr) return;
  throw CommError(
      fmt::format("srun started {} ranks without a way for MPI to connect them (no PMIX_ or PMI_ variables); start "
                  "with srun --mpi=pmix, "
                  "or with mpirun inside the allocation",
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
    const int largest = found != 0 ? *static_cast<int*>(limit) : 32767;  // what the standard guarantees
    world_.tag_half = largest / 2;
    engine_ = std::make_shared<mpi::Engine>();
    agreement_ = c10::make_intrusive<mpi::Backend>(engine_, std::make_shared<Channel>(world_), timeout_);
  }

  ~MpiTransport() override {
    agreement_.reset();
    engine_->stop();
    // While an error unwinds this rank, the others may never get here: MPI_Finalize would wait for them for ever.
    if (finalize_ && std::uncaught_exceptions() <= exceptions_at_start_) {
      MPI_Finalize();
      engine_->release();
    }
  }

  [[nodiscard]] std::string name() const override { return mpi_built_with(); }

  void join(c10d::ProcessGroup* group, const std::vector<int>& ranks, const std::string& axis) override {
    agree(ranks, axis);
    if (group == nullptr) return;
    auto channel = std::make_shared<Channel>(world_);
    // Never freed: MPI_Comm_free is collective, and each rank lets go of its groups in an order of its own.
    channel->axis = axis;
    channel->ranks = ranks;
    channel->size = static_cast<int>(ranks.size());
    // All members are here by the agreement and call nothing else of MPI: these blocking calls cannot wait for long.
    engine_->exclusively([&] {
      MPI_Group everyone = MPI_GROUP_NULL, members = MPI_GROUP_NULL;
      MPI_Comm_group(world_.comm, &everyone);
      MPI_Group_incl(everyone, channel->size, ranks.data(), &members);
      const int code = MPI_Comm_create_group(world_.comm, members, 0, &channel->comm);
      MPI_Group_free(&members);
      MPI_Group_free(&everyone);
      if (code != MPI_SUCCESS) throw CommError(fmt::format("no communicator for group {}: MPI error {}", axis, code));
      MPI_Comm_set_errhandler(channel->comm, MPI_ERRORS_RETURN);
      MPI_Comm_rank(channel->comm, &channel->rank);
    });
    const auto backend = c10::make_intrusive<mpi::Backend>(engine_, channel, timeout_);
    group->setBackend(c10::kCPU, c10d::ProcessGroup::BackendType::MPI, backend);
    if (stage_cuda_) group->setBackend(c10::kCUDA, c10d::ProcessGroup::BackendType::MPI, backend);
    group->setDefaultBackend(c10d::ProcessGroup::BackendType::MPI);
  }

  std::vector<std::string> gather(const std::string& mine) override {
    constexpr std::size_t kLongest = 512;
    TRIREME_CHECK(mine.size() < kLongest, "a text of {} bytes to be gathered", mine.size());
    auto text = at::zeros({kLongest}, at::kByte), all = at::empty({world_.size, kLongest}, at::kByte);
    std::memcpy(text.data_ptr(), mine.data(), mine.size());
    agreement_->_allgather_base(all, text, {.asyncOp = false})->wait();
    std::vector<std::string> said;
    for (int rank = 0; rank < world_.size; ++rank)
      said.emplace_back(static_cast<const char*>(all.data_ptr()) + static_cast<std::size_t>(rank) * kLongest);
    return said;
  }

  void stage_cuda() override { stage_cuda_ = true; }

  void abort(int exit_code) noexcept override { MPI_Abort(MPI_COMM_WORLD, exit_code); }

 private:
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

  /// All ranks reached this call with the same list: the communicators then match, and a wrong list is an error instead
  /// of a hang. Driven by the engine, so operations under way on any rank go on.
  void agree(const std::vector<int>& ranks, const std::string& axis) {
    std::int64_t mark = 1469598103934665603;
    for (const int rank : ranks) mark = (mark ^ rank) * 1099511628211 & 0x7fffffffffffff;
    auto both = at::tensor({mark, -mark}, at::kLong);
    std::vector<at::Tensor> tensors{both};
    c10d::AllreduceOptions options;
    options.reduceOp = c10d::ReduceOp::MAX;
    options.asyncOp = false;
    agreement_->allreduce(tensors, options)->wait();
    if (both[0].item<std::int64_t>() != mark || both[1].item<std::int64_t>() != -mark)
      throw CommError(fmt::format("group {}: the ranks of the world gave different lists; here [{}]", axis,
                                  fmt::join(ranks, ", ")));
  }

  std::chrono::milliseconds timeout_;
  bool stage_cuda_ = false;
  bool finalize_ = false;
  int exceptions_at_start_ = std::uncaught_exceptions();
  Channel world_;
  std::shared_ptr<mpi::Engine> engine_;
  c10::intrusive_ptr<mpi::Backend> agreement_;  // over all ranks, for the making of groups
};

}  // namespace

std::unique_ptr<Transport> start_mpi(const LaunchInfo& info, std::chrono::milliseconds timeout) {
  return std::make_unique<MpiTransport>(info, timeout);
}

std::string mpi_built_with() {
  return fmt::format("Open MPI {}.{}.{}", OMPI_MAJOR_VERSION, OMPI_MINOR_VERSION, OMPI_RELEASE_VERSION);
}

}  // namespace trireme::comm
