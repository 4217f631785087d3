#include "core/base/random.h"

#include <numeric>
#include <utility>

namespace trireme::random {

std::vector<std::int64_t> permutation(std::uint64_t key, std::int64_t n) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  for (std::int64_t i = n - 1; i > 0; --i) {
    const Four f = philox(key, 0, static_cast<std::uint64_t>(i));
    // 64 random bits for at most 2^40 choices: the bias of the remainder is below 2^-24.
    const std::uint64_t word = (static_cast<std::uint64_t>(f.v[0]) << 32) | f.v[1];
    std::swap(order[static_cast<std::size_t>(i)],
              order[static_cast<std::size_t>(word % static_cast<std::uint64_t>(i + 1))]);
  }
  return order;
}

}  // namespace trireme::random
