// Tar shards: where each image of an archive is, and its label; the images by index, and the order in which an epoch
// reads them almost sequentially.
//
// WebDataset's convention (Aizman, Maltby and Breuel, "High Performance I/O For Large Scale Deep Learning", 2019): the
// members KEY.jpg (or another image) and KEY.cls or KEY.json are one sample and adjacent. KEY ends at the first dot of
// the file's name. KEY.cls holds the class's number as text, KEY.json an integer "label" or "cls"; KEY.cls goes first.
// Hidden members (folder_entries.h) and those whose names begin with "__" are passed over, and so are keys without an
// image, which are counted.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/log.h"
#include "datasets/pixel_source.h"
#include "datasets/shard_cache.h"

namespace trireme::datasets {

/// An image in a shard; its header is the tar block before it.
struct TarImage {
  std::int64_t offset = 0;
  std::uint32_t bytes = 0;
  std::int32_t label = 0;
};

struct TarShard {
  std::string path;             ///< or the command that writes it (shard_pattern.h)
  std::int64_t file_bytes = 0;  ///< its size
  std::int64_t version = 0;     ///< of a file the time of the last change in ns (0: unknown), else the content's CRC-32
  std::int64_t without_image = 0;  ///< keys that were passed over
  std::uint64_t digest = 0;        ///< of the keys and labels, in order
  std::vector<TarImage> images;    ///< in the order of the archive; not empty
};

/// Labels are 0 to kMostClasses - 1.
inline constexpr std::int64_t kMostClasses = 1'000'000;

/// What its command is known to write.
ShardContent content_of(const TarShard& shard);

/// Reads the headers and labels of an archive. @throws DataError that names the archive, and the key or the offset: a
/// damaged or truncated archive, a sample with an image but no label or with two images, an invalid label, no image
TarShard index_shard(const TarFile& file);

/// The shards of these files and commands, in this order. What the user's cache has for unchanged files and for
/// commands is used (index_cache.h); the others are read by several threads, and the cache is written. `log` learns how
/// many commands run for that. @throws DataError
std::vector<TarShard> index_shards(const std::vector<std::string>& paths, ShardCache& cache, const Log& log);

/// Converts shards to bytes and back, for the cache and for the other ranks of a host. nullopt: damaged.
std::string serialize_shards(const std::vector<TarShard>& shards);
std::optional<std::vector<TarShard>> parse_shards(const std::string& bytes);

/// The samples of a shuffled epoch, as WebDataset shuffles them: the shards in a random order, and their samples, one
/// shard after the other, through a buffer of `buffer` samples, of which a random one leaves when the next one enters.
/// So the sample at position p is among the first p + `buffer` ones of the shards in their order. It is a pure function
/// of its arguments, and the same for any number of ranks.
/// @param sizes the number of samples of each shard; sample indices count through the shards in this order
///
/// shard_sequence() is the order of the shards.
std::vector<std::int64_t> shard_order(const std::vector<std::int64_t>& sizes, std::int64_t buffer, std::uint64_t seed,
                                      std::int64_t epoch);
std::vector<std::int64_t> shard_sequence(std::int64_t shards, std::uint64_t seed, std::int64_t epoch);

/// Reads each image at its offset; a few shards stay open. While a command's shard is read, the next one in the order
/// of the epoch is fetched. `buffer`: for shard_order().
std::shared_ptr<PixelSource> tar_source(std::vector<TarShard> shards, std::int64_t buffer, const Decoding& decoding,
                                        std::shared_ptr<ShardCache> cache);

}  // namespace trireme::datasets
