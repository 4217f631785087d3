#include "core/comm/native/segment.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstring>
#include <ctime>
#include <new>
#include <utility>

#include "core/base/error.h"

namespace trireme::comm::native {
namespace {

// Not FUTEX_PRIVATE: the word is shared between processes.
long futex(std::atomic<std::uint32_t>& word, int operation, std::uint32_t value, const timespec* timeout) {
  return syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), operation, value, timeout, nullptr, 0);
}

}  // namespace

void Doorbell::ring() const {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (state_->sleepers.load(std::memory_order_relaxed) == 0) return;
  state_->rings.fetch_add(1, std::memory_order_seq_cst);
  futex(state_->rings, FUTEX_WAKE, INT_MAX, nullptr);
}

void Doorbell::wait(std::uint32_t ticket, std::chrono::nanoseconds at_most) const {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(at_most);
  const timespec timeout{.tv_sec = seconds.count(), .tv_nsec = (at_most - seconds).count()};
  futex(state_->rings, FUTEX_WAIT, ticket, &timeout);
}

namespace {

constexpr std::size_t kPage = 4096;
std::size_t whole_pages(std::size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

}  // namespace

struct Segment::Header {
  Token token;
  alignas(64) BellState bell;
};

Segment::Segment(FileDescriptor file, int ranks) : file_(std::move(file)), ranks_(ranks) {
  const auto count = static_cast<std::size_t>(ranks);
  bytes_ = kPage + whole_pages(count * sizeof(RingState)) + count * kRingBytes;
}

Segment Segment::create(int ranks) {
  Segment made(FileDescriptor(memfd_create("trireme", MFD_CLOEXEC)), ranks);
  if (!made.file_ || ftruncate(made.fd(), static_cast<off_t>(made.bytes_)) != 0)
    throw CommError(fmt::format("cannot create shared memory of {} bytes: {}", made.bytes_, std::strerror(errno)));
  made.memory_ = map_memory(made.fd(), made.bytes_, PROT_READ | PROT_WRITE, MAP_SHARED);
  if (!made.memory_)
    throw CommError(fmt::format("cannot map shared memory of {} bytes: {}", made.bytes_, std::strerror(errno)));
  auto* header = new (made.memory_.get()) Header;
  for (int from = 0; from < ranks; ++from) new (&made.ring(from)) RingState;
  if (getrandom(header->token.data(), sizeof header->token, 0) != sizeof header->token)
    throw CommError(fmt::format("cannot draw random numbers: {}", std::strerror(errno)));
  return made;
}

Segment Segment::map(pid_t pid, int fd, const Token& token, int ranks) {
  const auto path = fmt::format("/proc/{}/fd/{}", pid, fd);
  Segment made(FileDescriptor(open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOCTTY | O_NONBLOCK)), ranks);
  if (made.file_) made.memory_ = map_memory(made.fd(), made.bytes_, PROT_READ | PROT_WRITE, MAP_SHARED);
  if (!made.memory_) throw CommError(fmt::format("{}: {}", path, std::strerror(errno)));
  const bool whole = lseek(made.fd(), 0, SEEK_END) == static_cast<off_t>(made.bytes_);
  if (!whole || made.token() != token) throw CommError(fmt::format("{}: is not that rank's memory", path));
  made.close_file();
  return made;
}

const Token& Segment::token() const { return header().token; }
BellState& Segment::bell() const { return header().bell; }

RingState& Segment::ring(int from) const {
  return reinterpret_cast<RingState*>(at(kPage))[static_cast<std::size_t>(from)];
}

std::byte* Segment::ring_data(int from) const {
  return at(kPage + whole_pages(static_cast<std::size_t>(ranks_) * sizeof(RingState)) +
            static_cast<std::size_t>(from) * kRingBytes);
}

}  // namespace trireme::comm::native
