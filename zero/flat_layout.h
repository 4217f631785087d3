// FlatLayout: tensors laid end to end in one flat buffer that N ranks share out evenly. The one description of that
// buffer: reducer, optimizer, gather, gradient norm and checkpoint ask it.
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
  /// 64 bytes of float32: vector loads and rings of messages stay aligned.
  static constexpr std::int64_t kAlignment = 16;

  FlatLayout(std::vector<std::int64_t> sizes, int parts, std::int64_t alignment = kAlignment);

  [[nodiscard]] std::size_t items() const { return sizes_.size(); }
  [[nodiscard]] int parts() const { return parts_; }
  [[nodiscard]] std::int64_t total() const { return part_size_ * parts_; }  ///< padding included
  [[nodiscard]] std::int64_t payload() const { return payload_; }           ///< without any padding
  [[nodiscard]] std::int64_t part_size() const { return part_size_; }
  /// Where an item lies in the buffer.
  [[nodiscard]] shard::Range item(std::size_t index) const;
  /// Where a rank's part lies in the buffer.
  [[nodiscard]] shard::Range part(int rank) const;
  /// The elements of an item that a rank's part holds, counted from the item's first; empty ({0, 0}) when none.
  [[nodiscard]] shard::Range owned(std::size_t index, int rank) const;
  /// Where those begin in the part; 0 when there are none.
  [[nodiscard]] std::int64_t place_in_part(std::size_t index, int rank) const;

 private:
  std::vector<std::int64_t> sizes_, offsets_;
  int parts_;
  std::int64_t part_size_ = 0, payload_ = 0;
};

}  // namespace trireme::zero
