// Writes the tensors of a checkpoint: each rank its own slices, in parallel, each element once. No rank needs another's
// slices. Of slices that several ranks have copies of, each writes an equal share, by bytes; where the ranks have
// several storages, the copies of each storage count alone, so that a storage has all that its ranks hold.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/checkpoint/manifest.h"
#include "core/checkpoint/storage.h"
#include "core/comm/mesh.h"
#include "core/shard/placement.h"

namespace trireme::checkpoint {

/// The slices that this rank writes. Every rank decides for itself: the ranks of a stage list the same tensors, also
/// those of which a rank holds no element, and tensors with copies along the same axes are dealt out in the order of
/// their names.
std::vector<shard::Slice> own_slices(const std::vector<shard::Slice>& slices, const comm::Mesh& mesh,
                                     const Storage& storage);

/// Writes a rank's own_slices() to folder/GROUP-RANK-NN.safetensors, each of at most `most_bytes`, but for a slice that
/// is larger. Returns what it wrote; nothing is written where there is none. `before_each` is called before each slice;
/// what it throws ends the writing, and leaves no partial file. Not collective. @throws CheckpointError
Manifest write_shards(const std::string& folder, const std::string& group, const std::vector<shard::Slice>& own,
                      int rank, std::uint64_t most_bytes, const std::function<void()>& before_each);

}  // namespace trireme::checkpoint
