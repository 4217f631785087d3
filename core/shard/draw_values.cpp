// Compiled with -ffp-contract=off (core/shard/CMakeLists.txt).
#include "core/shard/draw_values.h"

#include <algorithm>

#include "core/base/error.h"
#include "core/base/random_lanes.h"
#include "core/base/vector_widths.h"

namespace trireme::shard {
namespace {

constexpr std::int64_t kBlock = 4 * random::kLanes;  // elements that are drawn together

template <Init::Kind kind>
[[gnu::always_inline]] inline void values_of(float a, float b, const random::LaneBits& bits, float* out) {
  const auto& [w0, w1, w2, w3] = bits.v;
  for (int i = 0; i < random::kLanes; ++i) {
    const auto values = four_values<kind>(a, b, {{w0[i], w1[i], w2[i], w3[i]}});
    for (int k = 0; k < 4; ++k) out[4 * i + k] = values.v[k];
  }
}

/// Elements [4 * quad, 4 * quad + kBlock).
TRIREME_VECTOR_WIDTHS void draw_block(Init::Kind kind, float a, float b, std::uint64_t key, std::uint64_t quad,
                                      float* out) {
  random::LaneBits bits;
  random::philox_lanes(key, 0, quad, bits);
  if (kind == Init::Kind::normal)
    values_of<Init::Kind::normal>(a, b, bits, out);
  else if (kind == Init::Kind::trunc_normal)
    values_of<Init::Kind::trunc_normal>(a, b, bits, out);
  else
    values_of<Init::Kind::uniform>(a, b, bits, out);
}

}  // namespace

void draw_values(const Init& init, std::uint64_t key, std::int64_t begin, std::int64_t count, float* out) {
  TRIREME_CHECK(init.kind != Init::Kind::zeros && init.kind != Init::Kind::ones, "a constant needs no random numbers");
  const auto a = static_cast<float>(init.a), b = static_cast<float>(init.b);
  float block[kBlock];
  for (std::int64_t at = begin; at < begin + count;) {
    const std::int64_t first = at / kBlock * kBlock, stop = std::min(first + kBlock, begin + count);
    const bool whole = first == at && stop == first + kBlock;
    draw_block(init.kind, a, b, key, static_cast<std::uint64_t>(first / 4), whole ? out : block);
    if (!whole) std::copy(block + (at - first), block + (stop - first), out);
    out += stop - at;
    at = stop;
  }
}

}  // namespace trireme::shard
