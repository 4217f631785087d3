// Partial recompute: the first blocks of each pipeline stage are recomputed in the backward pass, and the others save
// their activations. The first ones are chosen because a backward pass begins with the last block: the activations
// saved there are freed before the first blocks allocate theirs again. Without a pipeline the model is one stage.
#pragma once

#include <cstdint>
#include <vector>

#include "core/booster/train_options.h"

namespace trireme {

/// Returns for each block whether it is recomputed when train.recompute is set. `stages`: the number of blocks of each
/// stage, in forward order. @throws ConfigError
std::vector<bool> recomputed_blocks(const TrainOptions& train, const std::vector<std::int64_t>& stages);

}  // namespace trireme
