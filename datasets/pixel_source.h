// PixelSource: labelled images by index, before any transform: files of a folder, or generated leaves.
#pragma once

#include <ATen/ops/scalar_tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "core/data/dataset.h"
#include "datasets/image.h"

namespace trireme::datasets {

/// Thread-safe; the same index always gives the same pixels.
class PixelSource {
 public:
  virtual ~PixelSource() = default;
  [[nodiscard]] virtual std::int64_t size() const = 0;
  /// The class of a sample; 0 where samples have other targets, for which a source overrides the next two.
  [[nodiscard]] virtual std::int64_t label(std::int64_t index) const = 0;
  [[nodiscard]] virtual nn::SampleTensor target_spec() const { return {nn::kLabels, at::kLong, {}}; }
  [[nodiscard]] virtual at::Tensor target(std::int64_t index) const {
    return at::scalar_tensor(label(index), at::kLong);
  }
  [[nodiscard]] virtual std::int64_t channels() const { return 3; }
  /// An order of a shuffled epoch in which this source is read faster; nullopt: data::Dataset's default.
  [[nodiscard]] virtual std::optional<std::vector<std::int64_t>> order(const data::Shuffle& /*shuffle*/) const {
    return std::nullopt;
  }
  /// uint8 [H, W, channels]. @throws DataError that names the file.
  [[nodiscard]] virtual DecodedImage load(std::int64_t index) const = 0;
};

/// The samples of `of` with these numbers.
std::shared_ptr<PixelSource> part_source(std::shared_ptr<PixelSource> of, std::vector<std::int64_t> numbers);

}  // namespace trireme::datasets
