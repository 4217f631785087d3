#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <string>
#include <utility>

#include "core/base/error.h"
#include "core/base/random.h"
#include "core/base/text.h"
#include "datasets/image.h"
#include "datasets/tar_archive.h"
#include "datasets/tar_index.h"

namespace trireme::datasets {
namespace {

/// Keeps the archives open that were used last: opening one for each image would ask a network file system's server.
class OpenShards {
 public:
  std::shared_ptr<const TarFile> open(const std::string& path) {
    const std::lock_guard lock(mutex_);
    auto found = std::find_if(files_.begin(), files_.end(), [&](const auto& file) { return file->path() == path; });
    if (found == files_.end()) {
      if (files_.size() == kMostOpen) files_.pop_back();
      found = files_.insert(files_.end(), std::make_shared<const TarFile>(path, TarFile::Access::files));
    }
    std::rotate(files_.begin(), found, found + 1);
    return files_.front();
  }

 private:
  static constexpr std::size_t kMostOpen = 32;
  std::mutex mutex_;
  std::vector<std::shared_ptr<const TarFile>> files_;  ///< the one used last first
};

class TarSource : public PixelSource {
 public:
  TarSource(std::vector<TarShard> shards, std::int64_t buffer, const Decoding& decoding)
      : shards_(std::move(shards)), buffer_(buffer), decoding_(decoding) {
    for (const auto& shard : shards_) {
      sizes_.push_back(static_cast<std::int64_t>(shard.images.size()));
      ends_.push_back(sizes_.back() + size());
    }
  }
  [[nodiscard]] std::int64_t size() const override { return ends_.empty() ? 0 : ends_.back(); }
  [[nodiscard]] std::int64_t label(std::int64_t index) const override { return find(index).second.label; }
  [[nodiscard]] std::optional<std::vector<std::int64_t>> order(const data::Shuffle& shuffle) const override {
    return shard_order(sizes_, buffer_, shuffle.seed, shuffle.epoch);
  }
  [[nodiscard]] DecodedImage load(std::int64_t index) const override {
    const auto& [shard, image] = find(index);
    // The header comes with the image: it has the name for messages, and shows whether the archive was replaced.
    std::vector<char> bytes(static_cast<std::size_t>(kTarBlock) + image.bytes);
    open_.open(shard.path)->read(image.offset - kTarBlock, bytes);
    const auto name = tar_member_name({bytes.data(), static_cast<std::size_t>(kTarBlock)});
    if (!name)
      throw DataError(
          fmt::format("{}: no member begins at byte {} any more: the file was changed after the start of "
                      "this run; start again",
                      shard.path, image.offset));
    const auto* first = reinterpret_cast<const unsigned char*>(bytes.data()) + kTarBlock;
    return decode_image({first, image.bytes}, fmt::format("{}: {}", shard.path, text::printable(*name)), decoding_);
  }

 private:
  [[nodiscard]] std::pair<const TarShard&, const TarImage&> find(std::int64_t index) const {
    const auto shard = static_cast<std::size_t>(std::upper_bound(ends_.begin(), ends_.end(), index) - ends_.begin());
    const auto& found = shards_.at(shard);
    return {found, found.images.at(static_cast<std::size_t>(index - ends_[shard] + sizes_[shard]))};
  }

  std::vector<TarShard> shards_;
  std::vector<std::int64_t> sizes_, ends_;  ///< of each shard: its samples, and the index after its last one
  std::int64_t buffer_;
  Decoding decoding_;
  mutable OpenShards open_;
};

}  // namespace

std::vector<std::int64_t> shard_order(const std::vector<std::int64_t>& sizes, std::int64_t buffer, std::uint64_t seed,
                                      std::int64_t epoch) {
  const auto key = random::mix(seed, random::hash("shuffle"), epoch);
  std::vector<std::int64_t> begins;
  std::int64_t samples = 0;
  for (const auto size : sizes) {
    begins.push_back(samples);
    samples += size;
  }
  const auto draw_key = random::mix(key, random::hash("buffer"));
  std::vector<std::int64_t> order, waiting;
  order.reserve(static_cast<std::size_t>(samples));
  const auto let_one_leave = [&] {
    const auto draw = random::philox(draw_key, 0, order.size());
    const auto word = static_cast<std::uint64_t>(draw.v[0]) << 32 | draw.v[1];
    std::swap(waiting[static_cast<std::size_t>(word % waiting.size())], waiting.back());
    order.push_back(waiting.back());
    waiting.pop_back();
  };
  for (const auto at :
       random::permutation(random::mix(key, random::hash("shards")), static_cast<std::int64_t>(sizes.size()))) {
    const auto shard = static_cast<std::size_t>(at);
    for (std::int64_t i = 0; i < sizes[shard]; ++i) {
      waiting.push_back(begins[shard] + i);
      if (static_cast<std::int64_t>(waiting.size()) == buffer) let_one_leave();
    }
  }
  while (!waiting.empty()) let_one_leave();
  return order;
}

std::shared_ptr<PixelSource> tar_source(std::vector<TarShard> shards, std::int64_t buffer, const Decoding& decoding) {
  return std::make_shared<TarSource>(std::move(shards), buffer, decoding);
}

}  // namespace trireme::datasets
