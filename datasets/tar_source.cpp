#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <string>
#include <utility>

#include "core/base/error.h"
#include "core/base/random.h"
#include "core/base/text.h"
#include "datasets/image.h"
#include "datasets/shard_pattern.h"
#include "datasets/tar_archive.h"
#include "datasets/tar_index.h"

namespace trireme::datasets {
namespace {

/// Keeps the archives open that were used last: opening one for each image would ask a network file system's server,
/// and one that the cache has removed would be fetched again.
class OpenShards {
 public:
  explicit OpenShards(std::shared_ptr<ShardCache> cache) : cache_(std::move(cache)) {}

  /// While it is read, `next` is fetched; null: there is none.
  std::shared_ptr<const TarFile> open(const TarShard& shard, const TarShard* next) {
    std::unique_lock lock(mutex_);
    if (!use(shard)) {
      lock.unlock();  // a command may take minutes, while others read what is open
      auto file = cache_->open(shard.path, TarFile::Access::files, content_of(shard));
      lock.lock();
      if (!use(shard)) {
        if (files_.size() == (is_command(shard.path) ? kMostFetched : kMostFiles)) files_.pop_back();
        files_.insert(files_.begin(), std::move(file));
      }
    }
    const auto file = files_.front();
    if (next != nullptr && next->path != ahead_ && find(*next) == files_.end()) {
      ahead_ = next->path;
      cache_->fetch_ahead(next->path, content_of(*next));
    }
    return file;
  }

 private:
  using Files = std::vector<std::shared_ptr<const TarFile>>;
  Files::iterator find(const TarShard& shard) {
    return std::find_if(files_.begin(), files_.end(), [&](const auto& file) { return file->name() == shard.path; });
  }
  /// Puts it in front; false: it is not open.
  bool use(const TarShard& shard) {
    const auto found = find(shard);
    if (found == files_.end()) return false;
    std::rotate(files_.begin(), found, found + 1);
    return true;
  }

  static constexpr std::size_t kMostFiles = 32;
  static constexpr std::size_t kMostFetched = 8;  // each takes space of the disk, even if the cache has removed it
  std::shared_ptr<ShardCache> cache_;
  std::mutex mutex_;
  Files files_;        ///< the one used last first
  std::string ahead_;  ///< the last one that was fetched ahead
};

class TarSource : public PixelSource {
 public:
  TarSource(std::vector<TarShard> shards, std::int64_t buffer, const Decoding& decoding,
            std::shared_ptr<ShardCache> cache)
      : shards_(std::move(shards)), buffer_(buffer), decoding_(decoding), open_(std::move(cache)) {
    for (const auto& shard : shards_) {
      sizes_.push_back(static_cast<std::int64_t>(shard.images.size()));
      ends_.push_back(sizes_.back() + size());
      next_.push_back(static_cast<std::int64_t>(next_.size()) + 1);
    }
    if (!next_.empty()) next_.back() = kNoShard;
  }
  [[nodiscard]] std::int64_t size() const override { return ends_.empty() ? 0 : ends_.back(); }
  [[nodiscard]] std::int64_t label(std::int64_t index) const override { return find(index).second.label; }
  [[nodiscard]] std::optional<std::vector<std::int64_t>> order(const data::Shuffle& shuffle) const override {
    const auto sequence = shard_sequence(static_cast<std::int64_t>(shards_.size()), shuffle.seed, shuffle.epoch);
    const std::lock_guard lock(mutex_);
    for (std::size_t i = 0; i < sequence.size(); ++i)
      next_[static_cast<std::size_t>(sequence[i])] = i + 1 < sequence.size() ? sequence[i + 1] : kNoShard;
    return shard_order(sizes_, buffer_, shuffle.seed, shuffle.epoch);
  }
  [[nodiscard]] DecodedImage load(std::int64_t index) const override {
    const auto& [shard, image] = find(index);
    // The header comes with the image: it has the name for messages, and shows whether the archive was replaced.
    check_bytes(image.bytes, fmt::format("{}: the image at byte {}", shard.path, image.offset), decoding_);
    std::vector<char> bytes(static_cast<std::size_t>(kTarBlock) + image.bytes);
    open_.open(shard, next_of(shard))->read(image.offset - kTarBlock, bytes);
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
  static constexpr std::int64_t kNoShard = -1;
  [[nodiscard]] const TarShard* next_of(const TarShard& shard) const {
    const std::lock_guard lock(mutex_);
    const auto next = next_[static_cast<std::size_t>(&shard - shards_.data())];
    return next == kNoShard ? nullptr : &shards_[static_cast<std::size_t>(next)];
  }
  [[nodiscard]] std::pair<const TarShard&, const TarImage&> find(std::int64_t index) const {
    const auto shard = static_cast<std::size_t>(std::upper_bound(ends_.begin(), ends_.end(), index) - ends_.begin());
    const auto& found = shards_.at(shard);
    return {found, found.images.at(static_cast<std::size_t>(index - ends_[shard] + sizes_[shard]))};
  }

  std::vector<TarShard> shards_;
  std::vector<std::int64_t> sizes_, ends_;  ///< of each shard: its samples, and the index after its last one
  std::int64_t buffer_;
  Decoding decoding_;
  mutable std::mutex mutex_;
  mutable std::vector<std::int64_t> next_;  ///< of each shard, the one after it in the epoch; guarded by the mutex
  mutable OpenShards open_;
};

/// Of all draws of a shuffled epoch.
std::uint64_t epoch_key(std::uint64_t seed, std::int64_t epoch) {
  return random::mix(seed, random::hash("shuffle"), epoch);
}

}  // namespace

std::vector<std::int64_t> shard_sequence(std::int64_t shards, std::uint64_t seed, std::int64_t epoch) {
  return random::permutation(random::mix(epoch_key(seed, epoch), random::hash("shards")), shards);
}

std::vector<std::int64_t> shard_order(const std::vector<std::int64_t>& sizes, std::int64_t buffer, std::uint64_t seed,
                                      std::int64_t epoch) {
  std::vector<std::int64_t> begins;
  std::int64_t samples = 0;
  for (const auto size : sizes) {
    begins.push_back(samples);
    samples += size;
  }
  const auto draw_key = random::mix(epoch_key(seed, epoch), random::hash("buffer"));
  std::vector<std::int64_t> order, waiting;
  order.reserve(static_cast<std::size_t>(samples));
  const auto let_one_leave = [&] {
    const auto draw = random::philox(draw_key, 0, order.size());
    const auto word = static_cast<std::uint64_t>(draw.v[0]) << 32 | draw.v[1];
    std::swap(waiting[static_cast<std::size_t>(word % waiting.size())], waiting.back());
    order.push_back(waiting.back());
    waiting.pop_back();
  };
  for (const auto at : shard_sequence(static_cast<std::int64_t>(sizes.size()), seed, epoch)) {
    const auto shard = static_cast<std::size_t>(at);
    for (std::int64_t i = 0; i < sizes[shard]; ++i) {
      waiting.push_back(begins[shard] + i);
      if (static_cast<std::int64_t>(waiting.size()) == buffer) let_one_leave();
    }
  }
  while (!waiting.empty()) let_one_leave();
  return order;
}

std::shared_ptr<PixelSource> tar_source(std::vector<TarShard> shards, std::int64_t buffer, const Decoding& decoding,
                                        std::shared_ptr<ShardCache> cache) {
  return std::make_shared<TarSource>(std::move(shards), buffer, decoding, std::move(cache));
}

}  // namespace trireme::datasets
