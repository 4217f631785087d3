// Vocabulary-parallel embedding: each rank has the vectors of some of the words. Shoeybi et al., "Megatron-LM", 2019,
// section 3.
//
//   look up   y = sum_r y_r          y_r: the vectors of the words that rank r has, zeros for the others
//   scores    [x W_0^T, x W_1^T, ...]  or this rank's part alone, for a loss that is computed so (label_loss.h)
//
// Traffic, in elements: an all-reduce of the looked-up vectors forward, one of x's gradient backward of the scores, and
// the scores where they are gathered.
#pragma once

#include "core/comm/group.h"
#include "core/nn/embedding.h"

namespace trireme::shardformer {

/// Cuts the layer. `apart_in_training`: scores are not gathered then. To be done before the layer has memory.
void cut_vocabulary(nn::Embedding& embedding, const comm::Group& group, bool apart_in_training);

}  // namespace trireme::shardformer
