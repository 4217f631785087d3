// PixelCache: caches decoded images of one data set by index while its budget lasts. There is no eviction: with a new
// order in each epoch, every image is equally likely to be needed next. Thread-safe.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

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

}  // namespace trireme::datasets
