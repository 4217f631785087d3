// The images of tar shards by index, and the order in which an epoch reads them almost sequentially.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "datasets/pixel_source.h"
#include "datasets/tar_index.h"

namespace trireme::datasets {

/// The samples of a shuffled epoch, as WebDataset shuffles them: the shards in a random order, and their samples, one
/// shard after the other, through a buffer of `buffer` samples, of which a random one leaves when the next one enters.
/// So the sample at position p is among the first p + `buffer` ones of the shards in their order. It is a pure function
/// of its arguments, and the same for any number of ranks.
/// @param sizes the number of samples of each shard; sample indices count through the shards in this order
std::vector<std::int64_t> shard_order(const std::vector<std::int64_t>& sizes, std::int64_t buffer, std::uint64_t seed,
                                      std::int64_t epoch);

/// Reads each image at its offset; a few shards stay open. `buffer`: for shard_order().
std::shared_ptr<PixelSource> tar_source(std::vector<TarShard> shards, std::int64_t buffer);

}  // namespace trireme::datasets
