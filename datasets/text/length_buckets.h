// Length buckets: a shuffled order in which the samples of each step are of like lengths, so that little is padded.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "core/data/dataset.h"

namespace trireme::datasets {

/// `shuffled`, a permutation, is cut into windows of many global batches; each is sorted by length and cut into global
/// batches, and the order of all of these is shuffled. The incomplete batch at the end of `shuffled` stays at the end,
/// so that train.drop_last drops any samples, not the longest ones. The result depends on the lengths and the arguments
/// alone; without a global batch it is `shuffled`.
std::vector<std::int64_t> order_in_buckets(std::vector<std::int64_t> shuffled, const data::Shuffle& shuffle,
                                           const std::function<std::int64_t(std::int64_t)>& length_of);

}  // namespace trireme::datasets
