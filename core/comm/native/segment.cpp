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

Segment::Segment(int fd, int ranks) : ranks_(ranks), fd_(fd) {
  const auto count = static_cast<std::size_t>(ranks);
  bytes_ = kPage + whole_pages(count * sizeof(RingState)) + count * kRingBytes;
}

Segment Segment::create(int ranks) {
  Segment made(memfd_create("trireme", MFD_CLOEXEC), ranks);
  if (made.fd_ < 0 || ftruncate(made.fd_, static_cast<off_t>(made.bytes_)) != 0)
    throw CommError(fmt::format("cannot create shared memory of {} bytes: {}", made.bytes_, std::strerror(errno)));
  void* base = mmap(nullptr, made.bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, made.fd_, 0);
  if (base == MAP_FAILED)
    throw CommError(fmt::format("cannot map shared memory of {} bytes: {}", made.bytes_, std::strerror(errno)));
  made.base_ = static_cast<std::byte*>(base);
  auto* header = new (base) Header;
  for (int from = 0; from < ranks; ++from) new (&made.ring(from)) RingState;
  if (getrandom(header->token.data(), sizeof header->token, 0) != sizeof header->token)
    throw CommError(fmt::format("cannot draw random numbers: {}", std::strerror(errno)));
  return made;
}

Segment Segment::map(pid_t pid, int fd, const Token& token, int ranks) {
  const auto path = fmt::format("/proc/{}/fd/{}", pid, fd);
  const int file = open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
  if (file < 0) throw CommError(fmt::format("{}: {}", path, std::strerror(errno)));
  Segment made(file, ranks);
  void* base = mmap(nullptr, made.bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  const int error = errno;
  const bool whole = lseek(file, 0, SEEK_END) == static_cast<off_t>(made.bytes_);
  made.close_file();
  if (base == MAP_FAILED) throw CommError(fmt::format("{}: {}", path, std::strerror(error)));
  made.base_ = static_cast<std::byte*>(base);
  if (!whole || made.token() != token) throw CommError(fmt::format("{}: is not that rank's memory", path));
  return made;
}

Segment::Segment(Segment&& other) noexcept
    : base_(std::exchange(other.base_, nullptr)),
      bytes_(other.bytes_),
      ranks_(other.ranks_),
      fd_(std::exchange(other.fd_, -1)) {}

Segment& Segment::operator=(Segment&& other) noexcept {
  std::swap(base_, other.base_);
  std::swap(bytes_, other.bytes_);
  std::swap(ranks_, other.ranks_);
  std::swap(fd_, other.fd_);
  return *this;
}

Segment::~Segment() {
  if (base_ != nullptr) munmap(base_, bytes_);
  close_file();
}

void Segment::close_file() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

const Token& Segment::token() const { return header().token; }
BellState& Segment::bell() const { return header().bell; }

RingState& Segment::ring(int from) const {
  return reinterpret_cast<RingState*>(base_ + kPage)[static_cast<std::size_t>(from)];
}

std::byte* Segment::ring_data(int from) const {
  return base_ + kPage + whole_pages(static_cast<std::size_t>(ranks_) * sizeof(RingState)) +
         static_cast<std::size_t>(from) * kRingBytes;
}

}  // namespace trireme::comm::native
