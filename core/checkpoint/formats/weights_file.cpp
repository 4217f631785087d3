#include "core/checkpoint/formats/weights_file.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "core/base/error.h"

namespace trireme::checkpoint {

at::Tensor WeightsFile::read(const std::string& name, const shard::Placement& placement) const {
  const auto needed = placement.stored_shape();
  if (const auto shape = info(name).shape; shape != needed)
    throw CheckpointError(fmt::format("{}: tensor \"{}\" has shape [{}], but [{}] is needed", path(), name,
                                      fmt::join(shape, ", "), fmt::join(needed, ", ")));
  return placement.stored_transposed ? read_transposed(name, placement) : read_slice(name, placement);
}

at::Tensor WeightsFile::read_transposed(const std::string& name, const shard::Placement& placement) const {
  return transpose_of(placement, [&](const shard::Placement& in_file) { return read_slice(name, in_file); });
}

at::Tensor WeightsFile::transpose_of(const shard::Placement& placement,
                                     const std::function<at::Tensor(const shard::Placement&)>& read) {
  auto other = placement;
  std::reverse(other.shape.begin(), other.shape.end());
  other.stored_transposed = false;
  std::reverse(other.cuts.begin(), other.cuts.end());
  for (auto& cut : other.cuts) cut.dim = 1 - cut.dim;
  other.flat.reset();  // a flat range is not one of the transpose, so it is taken from the tensor shard
  const auto shard = read(other).t().contiguous();
  return placement.flat ? shard.view(-1).narrow(0, placement.flat->begin, placement.flat->size()) : shard;
}

}  // namespace trireme::checkpoint
