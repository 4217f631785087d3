// FlatLayout: tensors laid out consecutively in one flat buffer that N ranks partition evenly. It is the only
// description of that buffer; the reducer, the optimizer, the all-gather, the gradient norm and checkpoints all use it.
//
//   | item 0 ........ |pad| item 1 .. |pad| item 2 ................. |pad|  tail padding |
//   | part of rank 0                  | part of rank 1                                  |
//
// Unit: elements. Invariants: items keep their order and begin at multiples of `alignment`; all parts have one size, a
// multiple of `alignment`; parts x part size = total. An item may span several parts, a part several items.
#pragma once

#include <cstdint>
#include <vector>

#include "core/shard/placement.h"

namespace trireme::zero {

class FlatLayout {
 public:
  /// 64 bytes of float32, so that vector loads and ring messages stay aligned.
  static constexpr std::int64_t kAlignment = 16;

  FlatLayout(std::vector<std::int64_t> sizes, int parts, std::int64_t alignment = kAlignment);

  [[nodiscard]] std::size_t items() const { return sizes_.size(); }
  [[nodiscard]] int parts() const { return parts_; }
  [[nodiscard]] std::int64_t total() const { return part_size_ * parts_; }  ///< padding included
  [[nodiscard]] std::int64_t payload() const { return payload_; }           ///< without any padding
  [[nodiscard]] std::int64_t part_size() const { return part_size_; }
  /// The range of an item in the buffer.
  [[nodiscard]] shard::Range item(std::size_t index) const;
  /// The range of a rank's part in the buffer.
  [[nodiscard]] shard::Range part(int rank) const;
  /// The elements of an item that a rank's part holds, counted from the start of the item; {0, 0} when there are none.
  [[nodiscard]] shard::Range owned(std::size_t index, int rank) const;
  /// The offset of these elements in the part; 0 when there are none.
  [[nodiscard]] std::int64_t offset_in_part(std::size_t index, int rank) const;

 private:
  std::vector<std::int64_t> sizes_, offsets_;
  int parts_;
  std::int64_t part_size_ = 0, payload_ = 0;
};

}  // namespace trireme::zero
