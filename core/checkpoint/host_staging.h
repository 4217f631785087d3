// HostStaging: copies of tensors in host memory that is allocated once and used for every save, so that the tensors may
// change while their copies are written to disk.
//
// On a CPU rank a copy is complete when copy() returns. On a GPU it is queued on the current stream, into pinned
// memory, and the host goes on: the kernels of the next step, which are queued behind it, change the tensors after the
// copy. Only one thread may use an object at a time, but wait() may be called on another one than copy().
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "core/shard/placement.h"

namespace trireme::checkpoint {

class HostStaging {
 public:
  /// The bytes that copies of these slices need.
  static std::int64_t bytes_for(const std::vector<shard::Slice>& slices);

  /// Makes room for so many bytes, unless there is room already; earlier copies are then gone. The memory does not
  /// count towards the limit on the rank's tensors. `device`: where most of the tensors are.
  void reserve(std::int64_t bytes, c10::Device device);
  [[nodiscard]] std::int64_t capacity() const { return memory_.defined() ? memory_.numel() : 0; }

  /// Forgets the copies, whose memory is used again.
  void clear();
  /// Replaces each value by its copy. @pre there is room for them
  void copy(std::vector<shard::Slice>& slices);
  /// Waits until all copies are complete.
  void wait() const;

 private:
  at::Tensor memory_;  ///< bytes
  std::int64_t used_ = 0;
  std::unique_ptr<c10::Event> copied_;  ///< null: all copies are complete
};

}  // namespace trireme::checkpoint
