#include "plugins/hybrid_parallel/partial_recompute.h"

#include <algorithm>
#include <cmath>

#include "core/base/error.h"

namespace trireme::plugins {

void check_recompute(const config::Table* section, const RecomputeKeys& keys, bool recompute) {
  const bool ratio = keys.recompute_ratio < 1, counts = !keys.recompute_layers_per_stage.empty();
  for (const auto& [set, key] : {std::pair{ratio, "recompute_ratio"}, {counts, "recompute_layers_per_stage"}})
    if (set && !recompute)
      config::fail(section, key, "has no effect without recompute; remove it, or set train.recompute = true");
  if (ratio && counts)
    config::fail(section, "recompute_ratio", "conflicts with recompute_layers_per_stage; set only one of them");
}

std::vector<bool> recomputed_blocks(const config::Table* section, const RecomputeKeys& keys,
                                    const std::vector<pipeline::Stage>& stages) {
  const auto& counts = keys.recompute_layers_per_stage;
  const char* const kCounts = "recompute_layers_per_stage";
  if (!counts.empty() && counts.size() != stages.size())
    config::fail(section, kCounts,
                 fmt::format("{} numbers for {} stages; give one per stage", counts.size(), stages.size()));
  std::vector<bool> recomputed;
  for (std::size_t s = 0; s < stages.size(); ++s) {
    const auto blocks = stages[s].size();
    const auto part = std::llround(keys.recompute_ratio * static_cast<double>(blocks));
    const auto wanted = counts.empty() ? std::max<std::int64_t>(1, part) : counts[s];
    if (wanted > blocks)
      config::fail(section, kCounts, fmt::format("stage {} has {} blocks; choose at most {}", s, blocks, blocks));
    for (std::int64_t b = 0; b < blocks; ++b) recomputed.push_back(b < wanted);
  }
  if (std::none_of(recomputed.begin(), recomputed.end(), [](bool is) { return is; }))
    config::fail(section, kCounts, "leaves no block to recompute; choose more, or set train.recompute = false");
  return recomputed;
}

}  // namespace trireme::plugins
