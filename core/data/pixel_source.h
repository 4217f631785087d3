// PixelSource: labelled images by number, before any transform: files of a folder, or drawn leaves.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

namespace trireme::data {

/// Thread-safe, and the same pixels for the same number each time.
class PixelSource {
 public:
  virtual ~PixelSource() = default;
  [[nodiscard]] virtual std::int64_t size() const = 0;
  [[nodiscard]] virtual std::int64_t label(std::int64_t index) const = 0;
  /// uint8 [H, W, 3]. @throws DataError that names the file.
  [[nodiscard]] virtual at::Tensor load(std::int64_t index) const = 0;
};

}  // namespace trireme::data
