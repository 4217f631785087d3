// Chunks: the buckets of stage 3. A chunk never straddles two blocks, so that a block runs with what it needs and no
// more; a block may have several.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "zero/buckets.h"

namespace trireme::zero {

/// Chunks in the order in which a backward pass finishes them: the last block's first, the trained ones before the
/// frozen ones. A parameter of several blocks is in a chunk of the first one, whose gradient is final last; those of no
/// block come at the end. A chunk is closed when it holds `elements` or more. @pre elements >= 1, parts >= 1
std::vector<Bucket> plan_chunks(nn::Model& model, std::int64_t elements, int parts);

/// The same, section by section (buckets.h). `section_of`: of a parameter, by its number among nn::declarations().
std::vector<Bucket> plan_chunks(nn::Model& model, std::int64_t elements, int parts,
                                const std::function<int(std::size_t)>& group_of);

/// How chunk sizes are looked for, in elements.
struct ChunkSearch {
  std::int64_t smallest = 32 << 20, range = 32 << 20;
  std::int64_t step = 1024;
};

/// Of the sizes smallest, smallest + step, ... smallest + range: the smallest one whose chunks waste least in padding.
std::int64_t search_chunk_elements(nn::Model& model, const ChunkSearch& search, int parts);

}  // namespace trireme::zero
