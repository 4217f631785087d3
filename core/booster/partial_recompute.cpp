#include "core/booster/partial_recompute.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/base/error.h"

namespace trireme {

std::vector<bool> recomputed_blocks(const TrainOptions& train, const std::vector<std::int64_t>& stages) {
  const auto& counts = train.recompute_layers_per_stage;
  const auto refuse = [](const std::string& why) {
    throw ConfigError(fmt::format("train.recompute_layers_per_stage: {}", why));
  };
  if (!counts.empty() && counts.size() != stages.size())
    refuse(fmt::format("{} numbers for {} stages; give one per stage", counts.size(), stages.size()));
  std::vector<bool> recomputed;
  for (std::size_t s = 0; s < stages.size(); ++s) {
    const auto part = std::llround(train.recompute_ratio * static_cast<double>(stages[s]));
    const auto wanted = counts.empty() ? std::max<std::int64_t>(1, part) : counts[s];
    if (wanted > stages[s]) refuse(fmt::format("stage {} has {} blocks; choose at most {}", s, stages[s], stages[s]));
    for (std::int64_t b = 0; b < stages[s]; ++b) recomputed.push_back(b < wanted);
  }
  if (!recomputed.empty() && std::none_of(recomputed.begin(), recomputed.end(), [](bool is) { return is; }))
    refuse("leaves no block to recompute; choose more, or set train.recompute = false");
  return recomputed;
}

}  // namespace trireme
