#include "core/checkpoint/weights_file.h"

#include <fmt/ranges.h>

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
  // A flat range is not one in the file, so it is taken from the tensor shard.
  auto in_file = placement;
  in_file.shape = placement.stored_shape();
  in_file.stored_transposed = false;
  in_file.dim = 1 - placement.dim;
  in_file.flat.reset();
  const auto shard = read_slice(name, in_file).t().contiguous();
  return placement.flat ? shard.view(-1).narrow(0, placement.flat->begin, placement.flat->size()) : shard;
}

}  // namespace trireme::checkpoint
