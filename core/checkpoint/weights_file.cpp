#include "core/checkpoint/weights_file.h"

#include <fmt/ranges.h>

#include "core/base/error.h"

namespace trireme::checkpoint {

at::Tensor WeightsFile::read(const std::string& name, const shard::Placement& placement) const {
  if (const auto shape = info(name).shape; shape != placement.shape)
    throw CheckpointError(fmt::format("{}: tensor \"{}\" has shape [{}], but [{}] is needed", path(), name,
                                      fmt::join(shape, ", "), fmt::join(placement.shape, ", ")));
  return read_slice(name, placement);
}

}  // namespace trireme::checkpoint
