#include "datasets/leaves.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <cstring>
#include <filesystem>

#include "core/base/error.h"
#include "core/base/random.h"
#include "datasets/image.h"
#include "datasets/leaf_painter.h"

namespace trireme::datasets {
namespace {

class LeafSource : public PixelSource {
 public:
  LeafSource(data::Split split, std::int64_t count, std::int64_t size, std::uint64_t seed)
      : split_(split), count_(count), size_(size), seed_(seed) {}
  [[nodiscard]] std::int64_t size() const override { return count_; }
  [[nodiscard]] std::int64_t label(std::int64_t index) const override { return index % kLeafClasses; }
  [[nodiscard]] DecodedImage load(std::int64_t index) const override {
    return {draw_leaf(split_, index, size_, seed_)};
  }

 private:
  data::Split split_;
  std::int64_t count_, size_;
  std::uint64_t seed_;
};

void check(std::int64_t images, std::int64_t size) {
  if (leaf_count(data::Split::test, images) < kLeafClasses)
    throw DataError(fmt::format("leaves: {} images are too few for three splits of {} classes; use at least 20", images,
                                kLeafClasses));
  if (size < kLeastLeafPixels || size > kMostLeafPixels)
    throw DataError(fmt::format("leaves: {} x {} pixels; images of leaves have {} to {} pixels per side", size, size,
                                kLeastLeafPixels, kMostLeafPixels));
}

void write_split(const std::string& dir, data::Split split, std::int64_t images, std::int64_t size,
                 std::uint64_t seed) {
  const auto folder = std::filesystem::path(dir) / data::name_of(split);
  const auto names = leaf_classes();
  for (const auto& name : names) {
    std::error_code error;
    std::filesystem::create_directories(folder / name, error);
    if (error) throw DataError(fmt::format("{}: cannot be created: {}", (folder / name).string(), error.message()));
  }
  for (std::int64_t number = 0; number < leaf_count(split, images); ++number)
    write_png(
        (folder / names[static_cast<std::size_t>(number % kLeafClasses)] / fmt::format("{:05}.png", number)).string(),
        draw_leaf(split, number, size, seed));
}

}  // namespace

std::vector<std::string> leaf_classes() { return {"angular_spots", "healthy", "rust"}; }

std::int64_t leaf_count(data::Split split, std::int64_t images) {
  const std::int64_t held_out = images * 15 / 100;
  return split == data::Split::train ? images - 2 * held_out : held_out;
}

at::Tensor draw_leaf(data::Split split, std::int64_t number, std::int64_t size, std::uint64_t seed) {
  const auto key = random::mix(seed, random::hash(data::name_of(split)), number);
  const auto pixels = paint_leaf(key, size, static_cast<LeafKind>(number % kLeafClasses));
  auto out = at::empty({size, size, 3}, at::kByte);
  std::memcpy(out.mutable_data_ptr(), pixels.data(), pixels.size());
  return out;
}

std::shared_ptr<PixelSource> leaf_source(data::Split split, std::int64_t images, std::int64_t size,
                                         std::uint64_t seed) {
  check(images, size);
  return std::make_shared<LeafSource>(split, leaf_count(split, images), size, seed);
}

void write_leaves(const std::string& dir, std::int64_t images, std::int64_t size, std::uint64_t seed) {
  check(images, size);
  std::error_code ignored;
  if (std::filesystem::is_directory(dir, ignored) && !std::filesystem::is_empty(dir, ignored))
    throw DataError(fmt::format("{}: the folder is not empty; name a new one", dir));
  try {
    for (const auto split : data::kSplits) write_split(dir, split, images, size, seed);
  } catch (...) {
    // A part of the images would be taken for all of them, and the next attempt would find the folder not empty.
    for (const auto split : data::kSplits)
      std::filesystem::remove_all(std::filesystem::path(dir) / data::name_of(split), ignored);
    throw;
  }
}

}  // namespace trireme::datasets
