#include "zero/flat_layout.h"

#include <algorithm>

#include "core/base/error.h"

namespace trireme::zero {
namespace {

std::int64_t round_up(std::int64_t value, std::int64_t unit) { return (value + unit - 1) / unit * unit; }

}  // namespace

FlatLayout::FlatLayout(std::vector<std::int64_t> sizes, int parts, std::int64_t alignment)
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

shard::Range FlatLayout::item(std::size_t index) const { return {offsets_.at(index), offsets_[index] + sizes_[index]}; }

shard::Range FlatLayout::part(int rank) const { return {rank * part_size_, (rank + 1) * part_size_}; }

shard::Range FlatLayout::owned(std::size_t index, int rank) const {
  const auto whole = item(index), mine = part(rank);
  const auto begin = std::max(whole.begin, mine.begin), end = std::min(whole.end, mine.end);
  if (begin >= end) return {};
  return {begin - whole.begin, end - whole.begin};
}

std::int64_t FlatLayout::offset_in_part(std::size_t index, int rank) const {
  const auto range = owned(index, rank);
  return range.size() == 0 ? 0 : item(index).begin + range.begin - part(rank).begin;
}

}  // namespace trireme::zero
