// ImageDataset: makes samples from a PixelSource, the transform and the cache.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/data/bad_samples.h"
#include "core/data/dataset.h"
#include "core/data/rows.h"
#include "datasets/batch_transform.h"
#include "datasets/pixel_cache.h"
#include "datasets/pixel_source.h"

namespace trireme::datasets {

/// The cache holds images after the steps that are the same in every epoch: of the final size (fit()), or as they are
/// loaded if there is a random crop.
class ImageDataset : public data::RowDataset {
 public:
  ImageDataset(std::shared_ptr<PixelSource> source, TransformOptions transform, std::uint64_t seed,
               std::shared_ptr<CacheBudget> budget, bool skip_bad, const Log& log);

  [[nodiscard]] std::int64_t size() const override { return source_->size(); }
  [[nodiscard]] std::vector<nn::SampleTensor> combined_targets() const override;
  [[nodiscard]] std::vector<std::int64_t> order(const data::Shuffle& shuffle) const override;
  [[nodiscard]] std::vector<std::int64_t> skipped() const override { return bad_.list(); }
  [[nodiscard]] nn::DataSpec spec() override;

  [[nodiscard]] data::RowSpec row_spec(const std::vector<std::string>& inputs, bool augment) const override;
  /// pixel_values are uint8 [H, W, C]; the image is decoded only if they are among `inputs`.
  std::optional<data::Sample> read(const std::vector<std::string>& inputs, std::int64_t index, std::int64_t epoch,
                                   bool augment) override;
  [[nodiscard]] data::Sample transform_batch(data::Sample batch, bool combine) const override {
    return transform_(std::move(batch), combine);
  }

 private:
  at::Tensor cached_pixels(std::int64_t index);
  /// Uint8 [H, W, C] of the final size.
  at::Tensor pixels(std::int64_t index, bool augment, std::int64_t epoch, std::optional<Augmentation>* chance);

  std::shared_ptr<PixelSource> source_;
  BatchTransform transform_;
  PixelCache cache_;
  data::BadSamples bad_;
};

}  // namespace trireme::datasets
