// Chunks: the buckets of stage 3. A chunk never spans two blocks, so that a block is run with exactly the chunks it
// needs; a block may have several.
#pragma once

#include <cstdint>
#include <vector>

#include "zero/buckets.h"

namespace trireme::zero {

/// Partitions the parameters into chunks, in the order in which a backward pass finishes them: those of the last block
/// first, the trained ones before the frozen ones. A parameter that several blocks use is in a chunk of the first of
/// them, where its gradient is complete; parameters of no block are at the end. A chunk is closed when it holds
/// rules.elements or more. Parameters are indices into the model's list, nn::declarations(). @pre rules.elements >= 1
std::vector<Bucket> plan_chunks(nn::Model& model, const BucketRules& rules);

/// The range of a search for the chunk size, in elements.
struct ChunkSearch {
  std::int64_t smallest = 32 << 20, range = 32 << 20;
  std::int64_t step = 1024;
};

/// Returns the smallest of the sizes smallest, smallest + step, ... smallest + range whose chunks have the least
/// padding. rules.elements is ignored.
std::int64_t search_chunk_elements(nn::Model& model, const ChunkSearch& search, BucketRules rules);

}  // namespace trireme::zero
