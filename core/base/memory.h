// Counts the memory of tensors on the CPU and optionally limits it. On CPU ranks it stands for device memory, so the
// memory needs of a layout can be measured and enforced on any machine.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <exception>
#include <optional>
#include <string>

namespace trireme::memory {

/// Starts counting the memory of tensors on the CPU, in bytes. An allocation that would exceed `limit` fails as on a
/// device (c10::OutOfMemoryError); 0: no limit. Tensors allocated before are not counted.
void count(std::int64_t limit = 0);

/// The bytes in use now, and their peak.
[[nodiscard]] std::int64_t held();
[[nodiscard]] std::int64_t peak();
/// The peak of tensor memory on this device in the whole run, independent of Meter::reset().
[[nodiscard]] std::int64_t peak_of(c10::Device device);
/// The limit that was given to count(); 0: no limit.
[[nodiscard]] std::int64_t limit();

/// The error's message if it reports that memory ran out; unset for any other error and for Trireme's own errors.
[[nodiscard]] std::optional<std::string> exhausted(const std::exception_ptr& error);

/// Measures the tensor memory of this rank's device, in bytes: on a GPU by LibTorch's allocator, on a CPU rank as
/// counted here, on a planned one as that counts them. Use only one at a time, because all share the device's peak.
class Meter {
 public:
  /// `sharers`: the number of ranks that share the device; each may use an equal part of it.
  explicit Meter(c10::Device device, int sharers = 1) : device_(device), sharers_(sharers) {}
  [[nodiscard]] std::int64_t peak() const;  ///< since reset()
  void reset();
  /// This rank's part of the device's total memory; on a CPU rank the limit, 0 if there is none.
  [[nodiscard]] std::int64_t capacity() const;

 private:
  c10::Device device_;
  int sharers_;
};

/// The bytes of host memory that this process can still get without swapping, by the machine and its cgroup; unset
/// where the system does not tell.
[[nodiscard]] std::optional<std::int64_t> available_on_host();

/// Work that belongs to no run: when the object is destroyed, the peak of the device is again what it was before, or
/// what is held then.
class PeakUndo {
 public:
  explicit PeakUndo(c10::Device device) : device_(device), before_(peak_of(device)) {}
  ~PeakUndo();
  PeakUndo(const PeakUndo&) = delete;
  PeakUndo& operator=(const PeakUndo&) = delete;

 private:
  c10::Device device_;
  std::int64_t before_;
};

/// While it exists, this thread's allocations do not count: host memory for offloaded state, decoded images.
class OfHost {
 public:
  explicit OfHost(bool applies = true);
  ~OfHost();
  OfHost(const OfHost&) = delete;
  OfHost& operator=(const OfHost&) = delete;
  /// Whether one exists in this thread.
  static bool applies();

 private:
  bool before_;
};

}  // namespace trireme::memory
