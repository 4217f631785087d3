// Draws values on the host; neighbouring elements of a stream are computed in SIMD lanes. The bits of an element depend
// neither on the vector width nor on where a call begins and ends (core/shard/distribution.h says why).
#pragma once

#include <cstdint>

#include "core/shard/distribution.h"

namespace trireme::shard {

/// Writes elements [begin, begin + count) of the stream `key` to `out`, in single precision.
/// @pre init.kind is normal, trunc_normal or uniform
void draw_values(const Init& init, std::uint64_t key, std::int64_t begin, std::int64_t count, float* out);

}  // namespace trireme::shard
