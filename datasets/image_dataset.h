// ImageDataset: makes samples from a PixelSource, the transform and the cache.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/data/bad_samples.h"
#include "core/data/dataset.h"
#include "core/data/rows.h"
#include "datasets/batch_transform.h"
#include "datasets/pixel_source.h"

namespace trireme::datasets {

/// A number of bytes that several caches (the splits of a data source) share.
class CacheBudget {
 public:
  explicit CacheBudget(std::int64_t bytes) : left_(bytes) {}
  /// Takes `bytes` if that many are left.
  bool take(std::int64_t bytes) {
    auto left = left_.load();
    while (bytes <= left)
      if (left_.compare_exchange_weak(left, left - bytes)) return true;
    return false;
  }
  void give_back(std::int64_t bytes) { left_ += bytes; }
  [[nodiscard]] std::int64_t left() const { return left_; }

 private:
  std::atomic<std::int64_t> left_;
};

/// Caches decoded images of one data set by index while its budget lasts. There is no eviction: with a new order in
/// each epoch, every image is equally likely to be needed next. Thread-safe.
class PixelCache {
 public:
  PixelCache(std::int64_t samples, std::shared_ptr<CacheBudget> budget)
      : budget_(std::move(budget)), images_(static_cast<std::size_t>(samples)) {}
  ~PixelCache() { budget_->give_back(held_); }
  PixelCache(const PixelCache&) = delete;

  /// Returns the image, or an undefined tensor. The image is shared and must not be modified.
  [[nodiscard]] at::Tensor find(std::int64_t sample) const {
    const std::lock_guard lock(mutex_);
    return images_[static_cast<std::size_t>(sample)];
  }
  void add(std::int64_t sample, const at::Tensor& image) {
    const auto bytes = static_cast<std::int64_t>(image.nbytes());
    const std::lock_guard lock(mutex_);
    auto& slot = images_[static_cast<std::size_t>(sample)];
    if (slot.defined() || !budget_->take(bytes)) return;
    slot = image;
    held_ += bytes;
  }

 private:
  std::shared_ptr<CacheBudget> budget_;
  mutable std::mutex mutex_;
  std::vector<at::Tensor> images_;
  std::int64_t held_ = 0;
};

/// The cache holds images after the steps that are the same in every epoch: of the final size (fit()), or as they are
/// loaded if there is a random crop.
class ImageDataset : public data::RowDataset {
 public:
  /// `skip_bad`, `log` and `alone`: see bad_samples.h.
  ImageDataset(std::shared_ptr<PixelSource> source, TransformOptions transform, std::uint64_t seed,
               std::shared_ptr<CacheBudget> budget, bool skip_bad, const Log& log, bool alone = false);

  [[nodiscard]] std::int64_t size() const override { return source_->size(); }
  [[nodiscard]] std::vector<nn::SampleTensor> combined_targets() const override;
  [[nodiscard]] std::vector<std::int64_t> order(const data::Shuffle& shuffle) const override;
  [[nodiscard]] std::vector<std::int64_t> skipped() const override { return bad_.list(); }
  [[nodiscard]] std::vector<std::int64_t> oriented() const override;
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
  mutable std::mutex oriented_mutex_;
  std::vector<bool> oriented_;  ///< by sample
};

}  // namespace trireme::datasets
