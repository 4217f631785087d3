#include "pipeline/partition.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "core/base/error.h"

namespace trireme::pipeline {
namespace {

void check_count(std::int64_t blocks, int stages) {
  TRIREME_CHECK(stages >= 1, "a pipeline cannot have {} stages", stages);
  if (blocks < stages)
    throw ConfigError(
        fmt::format("{} blocks cannot be split into {} stages of at least one block; choose at most {} stages", blocks,
                    stages, blocks));
}

std::vector<Stage> from_sizes(const std::vector<std::int64_t>& sizes) {
  std::vector<Stage> stages;
  std::int64_t at = 0;
  for (const auto size : sizes) {
    stages.push_back({at, at + size});
    at += size;
  }
  return stages;
}

/// The cost of a partition of the first blocks: its most expensive stage, then the sum of squares of its stages' costs.
struct Worth {
  double dearest = std::numeric_limits<double>::infinity(), squares = 0;
  friend bool operator<(const Worth& a, const Worth& b) {
    return a.dearest != b.dearest ? a.dearest < b.dearest : a.squares < b.squares;
  }
};

}  // namespace

std::vector<Stage> partition_uniform(std::int64_t blocks, int stages) {
  check_count(blocks, stages);
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(stages), blocks / stages);
  const auto more = static_cast<std::size_t>(blocks % stages), first = (sizes.size() - more) / 2;
  for (std::size_t s = first; s < first + more; ++s) ++sizes[s];
  return from_sizes(sizes);
}

// Dynamic programming over the number of stages: best[k] is the best partition of the first k blocks into s stages.
std::vector<Stage> partition_by_cost(const std::vector<double>& costs, int stages) {
  const auto n = costs.size();
  check_count(static_cast<std::int64_t>(n), stages);
  std::vector<double> before(n + 1, 0);  // prefix sums
  std::partial_sum(costs.begin(), costs.end(), before.begin() + 1);
  std::vector<Worth> best(n + 1);
  best[0] = {0, 0};
  std::vector<std::vector<std::size_t>> cut;  // cut[s][k]: where stage s begins if it ends at block k
  for (int s = 0; s < stages; ++s) {
    std::vector<Worth> next(n + 1);
    auto& begins = cut.emplace_back(n + 1, 0);
    for (std::size_t k = 1; k <= n; ++k)
      for (std::size_t begin = 0; begin < k; ++begin) {
        const double cost = before[k] - before[begin];
        const Worth worth{std::max(best[begin].dearest, cost), best[begin].squares + cost * cost};
        if (!(next[k] < worth)) {  // among equals the latest cut, which makes the earlier stages longer
          next[k] = worth;
          begins[k] = begin;
        }
      }
    best = std::move(next);
  }
  std::vector<std::int64_t> sizes;
  for (std::size_t s = cut.size(), k = n; s-- > 0; k = cut[s][k])
    sizes.push_back(static_cast<std::int64_t>(k - cut[s][k]));
  std::reverse(sizes.begin(), sizes.end());
  return from_sizes(sizes);
}

std::vector<Stage> partition_given(const std::vector<std::int64_t>& sizes, std::int64_t blocks, int stages) {
  TRIREME_CHECK(stages >= 1, "a pipeline cannot have {} stages", stages);
  if (sizes.size() != static_cast<std::size_t>(stages))
    throw ConfigError(fmt::format("has {} numbers for {} stages; give one per stage", sizes.size(), stages));
  for (const auto size : sizes)
    if (size < 1) throw ConfigError(fmt::format("a stage cannot have {} blocks; each needs at least one", size));
  const auto sum = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
  if (sum != blocks)
    throw ConfigError(
        fmt::format("[{}] add up to {} blocks, but the model has {}", fmt::join(sizes, ", "), sum, blocks));
  return from_sizes(sizes);
}

}  // namespace trireme::pipeline
