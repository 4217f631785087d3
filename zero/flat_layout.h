// FlatLayout: tensors laid out consecutively in one flat buffer that N ranks partition evenly. It is the only
// description of that buffer; the reducer, the optimizer, the all-gather, the gradient norm and checkpoints all use it.
//
//   | item 0 ........ |pad| item 1 .. |pad| item 2 ................. |pad|  tail padding |
//   | part of rank 0                  | part of rank 1                                  |
//
// Unit: elements. Invariants: items keep their order and begin at multiples of `alignment`; all parts have one size, a
// multiple of `alignment`; parts x part size = total. An item may span several parts, a part several items.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/shard/placement.h"

namespace trireme::zero {

class FlatLayout {
 public:
  /// 64 bytes of float32, so that vector loads and ring messages stay aligned.
  static constexpr std::int64_t kAlignment = 16;

  FlatLayout(std::vector<std::int64_t> sizes, int parts, std::int64_t alignment = kAlignment)
      : sizes_(std::move(sizes)), parts_(parts) {
    TRIREME_CHECK(parts >= 1 && alignment >= 1, "invalid flat layout: {} parts, alignment {}", parts, alignment);
    std::int64_t end = 0;
    for (const auto size : sizes_) {
      offsets_.push_back(end);
      end += round_up(size, alignment);
      payload_ += size;
    }
    part_size_ = round_up(end, alignment * parts) / parts;
  }

  [[nodiscard]] std::size_t items() const { return sizes_.size(); }
  [[nodiscard]] int parts() const { return parts_; }
  [[nodiscard]] std::int64_t total() const { return part_size_ * parts_; }  ///< padding included
  [[nodiscard]] std::int64_t payload() const { return payload_; }           ///< without any padding
  [[nodiscard]] std::int64_t part_size() const { return part_size_; }
  /// The range of an item in the buffer.
  [[nodiscard]] shard::Range item(std::size_t index) const {
    return {offsets_.at(index), offsets_[index] + sizes_[index]};
  }
  /// The range of a rank's part in the buffer.
  [[nodiscard]] shard::Range part(int rank) const { return {rank * part_size_, (rank + 1) * part_size_}; }
  /// The elements of an item that a rank's part holds, counted from the start of the item; {0, 0} when there are none.
  [[nodiscard]] shard::Range owned(std::size_t index, int rank) const {
    const auto whole = item(index), mine = part(rank);
    const auto begin = std::max(whole.begin, mine.begin), end = std::min(whole.end, mine.end);
    if (begin >= end) return {};
    return {begin - whole.begin, end - whole.begin};
  }
  /// The offset of these elements in the part; 0 when there are none.
  [[nodiscard]] std::int64_t offset_in_part(std::size_t index, int rank) const {
    const auto range = owned(index, rank);
    return range.size() == 0 ? 0 : item(index).begin + range.begin - part(rank).begin;
  }

 private:
  static std::int64_t round_up(std::int64_t value, std::int64_t unit) { return (value + unit - 1) / unit * unit; }

  std::vector<std::int64_t> sizes_, offsets_;
  int parts_;
  std::int64_t part_size_ = 0, payload_ = 0;
};

}  // namespace trireme::zero
