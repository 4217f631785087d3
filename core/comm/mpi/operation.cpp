#include "core/comm/mpi/operation.h"

#include <ATen/core/ivalue_inl.h>
#include <ATen/core/jit_type.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "core/base/error.h"
#include "core/comm/mpi/engine.h"

namespace trireme::comm::mpi {
namespace {

constexpr std::size_t kLargestMessage = 1u << 30;  // MPI counts are ints

std::string mpi_text(int code) {
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(code, text, &length);
  return {text, static_cast<std::size_t>(length)};
}

}  // namespace

Operation::Operation(std::shared_ptr<Engine> engine, std::shared_ptr<const Channel> channel, c10d::OpType type,
                     Program program)
    : c10d::Work(channel->rank, type),
      engine_(std::move(engine)),
      channel_(std::move(channel)),
      program_(std::move(program)),
      deadline_(Clock::now() + program_.timeout) {}

Operation::~Operation() = default;

std::string Operation::text() const {
  return fmt::format("{} (sequence {}) of group {}, rank {} of {}", program_.name, program_.sequence, channel_->axis,
                     channel_->rank, channel_->size);
}

void Operation::post(Round& round) {
  requests_.clear();
  posted_transfers_.clear();
  const auto start = [&](const Transfer& transfer, bool receive) {
    auto* data = static_cast<std::byte*>(transfer.data);
    std::size_t at = 0;
    // A message of zero bytes travels too: the other side checks the count.
    do {
      const auto bytes = std::min(kLargestMessage, transfer.bytes - at);
      auto& request = requests_.emplace_back(MPI_REQUEST_NULL);
      posted_transfers_.push_back({&transfer, bytes, receive});
      const auto count = static_cast<int>(bytes);
      const int code =
          receive ? MPI_Irecv(data + at, count, MPI_BYTE, transfer.peer, program_.tag, channel_->comm, &request)
                  : MPI_Isend(data + at, count, MPI_BYTE, transfer.peer, program_.tag, channel_->comm, &request);
      if (code != MPI_SUCCESS)
        throw CommError(fmt::format("{}: {} rank {}: {}", text(), receive ? "receiving from" : "sending to",
                                    transfer.peer, mpi_text(code)));
      at += bytes;
    } while (at < transfer.bytes);
  };
  for (const auto& transfer : round.receives) start(transfer, true);
  for (const auto& transfer : round.sends) start(transfer, false);
  pending_ = requests_.size();
  indices_.resize(pending_);
  statuses_.resize(pending_);
  posted_ = true;
}

void Operation::check_arrival(std::size_t index, const MPI_Status& status) {
  const auto& posted = posted_transfers_[index];
  const int peer = posted.receive ? status.MPI_SOURCE : posted.transfer->peer;
  const auto world_rank = [&](int rank) {
    return rank >= 0 && rank < channel_->size ? channel_->ranks[static_cast<std::size_t>(rank)] : -1;
  };
  if (status.MPI_ERROR != MPI_SUCCESS) {
    int error_class = 0;
    MPI_Error_class(status.MPI_ERROR, &error_class);
    if (error_class == MPI_ERR_TRUNCATE)
      throw CommError(
          fmt::format("{}: rank {} (world rank {}) sent more than the {} bytes that this rank expects; do "
                      "all ranks give the same shapes and dtypes, in the same order of calls?",
                      text(), peer, world_rank(peer), posted.bytes));
    throw CommError(fmt::format("{}: {} rank {} (world rank {}): {}", text(),
                                posted.receive ? "receiving from" : "sending to", peer, world_rank(peer),
                                mpi_text(status.MPI_ERROR)));
  }
  if (!posted.receive) return;
  int bytes = 0;
  MPI_Get_count(&status, MPI_BYTE, &bytes);
  source_ = peer;
  if (static_cast<std::size_t>(bytes) != posted.bytes)
    throw CommError(
        fmt::format("{}: rank {} (world rank {}) sent {} bytes, this rank expects {}; do all ranks give the "
                    "same shapes and dtypes, in the same order of calls?",
                    text(), peer, world_rank(peer), bytes, posted.bytes));
}

Operation::Step Operation::test() {
  int completed = 0;
  const int code =
      MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &completed, indices_.data(), statuses_.data());
  if (code != MPI_SUCCESS && code != MPI_ERR_IN_STATUS) throw CommError(fmt::format("{}: {}", text(), mpi_text(code)));
  if (completed == MPI_UNDEFINED || completed == 0) return Step::waiting;
  pending_ -= static_cast<std::size_t>(completed);
  for (int i = 0; i < completed; ++i) {
    auto& status = statuses_[static_cast<std::size_t>(i)];
    if (code == MPI_SUCCESS) status.MPI_ERROR = MPI_SUCCESS;  // the field is set only together with MPI_ERR_IN_STATUS
    check_arrival(static_cast<std::size_t>(indices_[static_cast<std::size_t>(i)]), status);
  }
  return Step::moved;
}

Operation::Step Operation::advance() {
  if (!posted_) {
    if (program_.ready && !program_.ready()) return Step::waiting;
    if (round_ == program_.rounds.size()) return Step::finished;
    post(program_.rounds[round_]);
  }
  if (pending_ > 0 && test() == Step::waiting) return Step::waiting;
  if (pending_ > 0) return Step::moved;
  if (auto& then = program_.rounds[round_].then) then();
  if (++round_ == program_.rounds.size()) return Step::finished;
  post(program_.rounds[round_]);
  return Step::moved;
}

std::string Operation::pending_peers() const {
  std::set<int> silent;
  for (std::size_t i = 0; i < requests_.size(); ++i)
    if (requests_[i] != MPI_REQUEST_NULL) silent.insert(posted_transfers_[i].transfer->peer);
  if (silent.contains(MPI_ANY_SOURCE)) return "any rank";
  std::vector<std::string> names;
  for (const int peer : silent)
    names.push_back(fmt::format("rank {} (world rank {})", peer, channel_->ranks[static_cast<std::size_t>(peer)]));
  return names.empty() ? "the device" : fmt::format("{}", fmt::join(names, ", "));
}

void Operation::fail(std::exception_ptr error) {
  error_ = std::move(error);
  for (std::size_t i = 0; i < requests_.size(); ++i)
    if (requests_[i] != MPI_REQUEST_NULL && posted_transfers_[i].receive) MPI_Cancel(&requests_[i]);
  int all = 0;
  MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &all, MPI_STATUSES_IGNORE);
}

void Operation::settle() {
  if (!error_ && program_.finish) {
    try {
      program_.finish();
    } catch (const std::exception& error) {
      error_ = std::make_exception_ptr(CommError(fmt::format("{}: copying the result back: {}", text(), error.what())));
    }
  }
  if (!error_) {  // after an error the late messages of others may still write there
    program_.rounds.clear();
    program_.scratch.clear();
    program_.tensors.clear();
  }
  program_.ready = nullptr;
  program_.finish = nullptr;
  c10::intrusive_ptr<c10::ivalue::Future> future;
  {
    const std::lock_guard lock(mutex_);
    done_.store(true, std::memory_order_release);
    future = future_;
  }
  if (!future) return;
  if (error_)
    future->setError(error_);
  else
    future->markCompleted(c10::IValue(program_.results));
}

bool Operation::wait(std::chrono::milliseconds timeout) {
  std::optional<Clock::time_point> until;
  if (timeout.count() > 0) until = Clock::now() + timeout;
  if (!engine_->drive(*this, until))
    throw CommError(
        fmt::format("{}: not complete within {:.3g} s", text(), static_cast<double>(timeout.count()) / 1000));
  if (error_) std::rethrow_exception(error_);
  return true;
}

c10::intrusive_ptr<c10::ivalue::Future> Operation::getFuture() {
  c10::intrusive_ptr<c10::ivalue::Future> future;
  bool complete = false;
  {
    const std::lock_guard lock(mutex_);
    if (future_) return future_;
    std::vector<c10::Device> devices;
    for (const auto& tensor : program_.results)
      if (!tensor.is_cpu() && std::find(devices.begin(), devices.end(), tensor.device()) == devices.end())
        devices.push_back(tensor.device());
    future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()), devices);
    future = future_;
    complete = done();
  }
  if (complete) {
    if (error_)
      future->setError(error_);
    else
      future->markCompleted(c10::IValue(program_.results));
  } else {
    engine_->wake();  // who waits on a future drives nothing
  }
  return future;
}

}  // namespace trireme::comm::mpi
