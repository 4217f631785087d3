// Segment: a rank's memory that the other ranks of its host map: its doorbell, and a ring from each of them, which that
// rank writes and this one reads.
//
// It is an anonymous file in memory (memfd), which others open by /proc/PID/fd: nothing is left when processes are
// killed, and the size of /dev/shm, small in containers, does not matter. A ring that no rank uses takes no memory.
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "core/comm/native/doorbell.h"

namespace trireme::comm::native {

constexpr std::size_t kRingBytes = 256u << 10;  // a power of two

/// The positions of a ring, counted in bytes since its beginning. The two sides write to separate cache lines.
struct RingState {
  alignas(64) std::atomic<std::uint64_t> written{0};
  alignas(64) std::atomic<std::uint64_t> read{0};
  alignas(64) std::atomic<std::uint32_t> writer_waits{0};  ///< for room
};

/// Distinguishes this segment from whatever else another process may have at the same number.
using Token = std::array<std::uint64_t, 2>;

class Segment {
 public:
  /// This rank's own, with a ring from each of `ranks`. @throws CommError.
  static Segment create(int ranks);
  /// Maps another rank's, which is open there as `fd`. @throws CommError.
  static Segment map(pid_t pid, int fd, const Token& token, int ranks);
  Segment(Segment&& other) noexcept;
  Segment& operator=(Segment&& other) noexcept;
  ~Segment();

  [[nodiscard]] int fd() const { return fd_; }
  /// When all have mapped it.
  void close_file();
  [[nodiscard]] const Token& token() const;
  [[nodiscard]] BellState& bell() const;
  [[nodiscard]] RingState& ring(int from) const;
  [[nodiscard]] std::byte* ring_data(int from) const;

 private:
  struct Header;
  Segment(int fd, int ranks);
  [[nodiscard]] Header& header() const { return *reinterpret_cast<Header*>(base_); }

  std::byte* base_ = nullptr;
  std::size_t bytes_ = 0;
  int ranks_ = 0, fd_ = -1;
};

}  // namespace trireme::comm::native
