// Memory of tensors on the CPU: counted, and limited if asked. On CPU ranks it stands for a device's memory, so that
// what a layout needs can be measured, and enforced, on any machine.
#pragma once

#include <cstdint>

namespace trireme::memory {

/// From here on the memory of tensors on the CPU is counted, in bytes, and more than `limit` at once is refused as a
/// device would (c10::OutOfMemoryError); 0: no limit. Tensors made before are not counted.
void count(std::int64_t limit = 0);

/// Held now, and the most that was held since reset_peak().
[[nodiscard]] std::int64_t held();
[[nodiscard]] std::int64_t peak();
void reset_peak();

/// While it lives, what this thread allocates does not count: memory of the host beside a device (offloaded state,
/// decoded images).
class OfHost {
 public:
  OfHost();
  ~OfHost();
  OfHost(const OfHost&) = delete;
  OfHost& operator=(const OfHost&) = delete;

 private:
  bool before_;
};

}  // namespace trireme::memory
