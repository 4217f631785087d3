// BatchTransform: the steps of the transform that need no decoder and follow for a whole batch, on the device that
// computes: normalisation, random erasing, and mixing with the next sample. Until then an image is uint8, a quarter of
// the memory, and what was drawn for it is in tensors beside it.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/data/rows.h"
#include "datasets/transform.h"

namespace trireme::datasets {

class BatchTransform {
 public:
  explicit BatchTransform(TransformOptions options, std::uint64_t seed);

  [[nodiscard]] const TransformOptions& options() const { return options_; }
  /// data::Dataset::combined_targets()
  [[nodiscard]] std::vector<nn::SampleTensor> combined_targets() const;
  /// The random choices for a sample whose image is of this size when it is loaded.
  [[nodiscard]] Augmentation draw(std::int64_t epoch, std::int64_t index, std::int64_t height,
                                  std::int64_t width) const {
    return draw_augmentation(options_, seed_, epoch, index, height, width);
  }
  /// Adds the tensors of add_draws() to the spec of a raw sample, with or without pixels.
  void add_draws(data::RowSpec& spec, bool pixels, bool augment) const;
  /// Adds what is drawn for a sample that is augmented; `chance` is unset for one without pixels.
  void add_draws(data::Sample& sample, const std::optional<Augmentation>& chance, std::int64_t epoch,
                 std::int64_t index) const;
  /// data::RowSamples::transform_batch() for batches whose pixel_values are uint8 [B, H, W, C], or floating-point
  /// [B, C, H, W], which are not normalised.
  [[nodiscard]] data::Sample operator()(data::Sample batch, bool combine) const;

 private:
  TransformOptions options_;
  std::uint64_t seed_;
  Normalise normalise_;
};

}  // namespace trireme::datasets
