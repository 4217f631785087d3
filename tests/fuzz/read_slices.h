// Reads a tensor of a file in several ways: whole, halves along each dim and along two, and a flat range. A target's
// only way of failing is an error other than a CheckpointError, or what a sanitizer reports.
#pragma once

#include <string>

#include "core/base/error.h"
#include "core/checkpoint/formats/weights_file.h"

namespace trireme::fuzz {

/// A limit for tensors whose size nothing has confirmed.
inline constexpr std::int64_t kMostElements = 1 << 20;

inline void read_slices(const checkpoint::WeightsFile& file, const std::string& name) {
  const auto read = [&](const shard::Placement& placement) {
    try {
      (void)file.read(name, placement);
      file.verify(name, placement);
    } catch (const CheckpointError&) {
      // such as a slice that no file has
    }
  };
  const auto whole = shard::Placement::whole(name, file.info(name).shape);
  read(whole);
  for (std::size_t dim = 0; dim < whole.shape.size(); ++dim)
    for (int half = 0; half < 2; ++half) {
      auto placement = whole;
      placement.cut(static_cast<std::int64_t>(dim), {shard::split(whole.shape[dim], 2, half)});
      read(placement);
      if (dim > 0) read(placement.cut(0, {shard::split(whole.shape[0], 2, half)}));
    }
  auto flat = whole;
  flat.flat = shard::split(whole.full_numel(), 3, 1);
  read(flat);
}

}  // namespace trireme::fuzz
