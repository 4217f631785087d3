// Memory of tensors on the CPU: counted, and limited if asked. On CPU ranks it stands for a device's memory, so that
// what a layout needs can be measured, and enforced, on any machine.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <exception>
#include <optional>
#include <string>

namespace trireme::memory {

/// From here on the memory of tensors on the CPU is counted, in bytes, and more than `limit` at once is refused as a
/// device would (c10::OutOfMemoryError); 0: no limit. Tensors made before are not counted.
void count(std::int64_t limit = 0);

/// Held now, and the most that was held at once.
[[nodiscard]] std::int64_t held();
[[nodiscard]] std::int64_t peak();
/// The most that tensors have held at once on this device in the whole run, whatever meters have reset.
[[nodiscard]] std::int64_t peak_of(c10::Device device);
/// What was given to count(); 0: no limit.
[[nodiscard]] std::int64_t limit();

/// What an error says of itself when it says that memory ran out; nothing: it is another error, or one of ours.
[[nodiscard]] std::optional<std::string> exhausted(const std::exception_ptr& error);

/// What tensors take of the device of this rank, in bytes: a GPU's by LibTorch's allocator, a CPU rank's as counted
/// here. One at a time: all share the device's peak.
class Meter {
 public:
  /// `sharers`: ranks that use the device, each of which may fill an equal part of it.
  explicit Meter(c10::Device device, int sharers = 1) : device_(device), sharers_(sharers) {}
  [[nodiscard]] std::int64_t peak() const;  ///< since reset()
  void reset();
  /// This rank's part of all that the device has; on a CPU rank the limit, 0 when there is none.
  [[nodiscard]] std::int64_t capacity() const;

 private:
  c10::Device device_;
  int sharers_;
};

/// While it lives, what this thread allocates does not count: memory of the host beside a device (offloaded state,
/// decoded images).
class OfHost {
 public:
  explicit OfHost(bool applies = true);
  ~OfHost();
  OfHost(const OfHost&) = delete;
  OfHost& operator=(const OfHost&) = delete;

 private:
  bool before_;
};

}  // namespace trireme::memory
