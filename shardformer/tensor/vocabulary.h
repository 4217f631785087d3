// Vocabulary-parallel embedding: each rank holds the embeddings of some of the token ids. Shoeybi et al.,
// "Megatron-LM", 2019, section 3.
//
//   look-up   y = sum_r y_r            y_r: the embeddings of the token ids that rank r holds, zeros for the others
//   scores    [x W_0^T, x W_1^T, ...]  or only this rank's part, for a loss of sharded logits
//   (core/nn/layers/chunked_cross_entropy.h)
//
// Communication: an all-reduce of the embeddings in the forward pass, an all-reduce of x's gradient in the backward
// pass of the scores, and an all-gather of the scores if they are gathered.
#pragma once

#include "core/comm/group.h"
#include "core/nn/layers/embedding.h"

namespace trireme::shardformer {

/// Shards the layer. `parallel_in_training`: in training the scores stay sharded. @pre the layer has no memory yet
void cut_vocabulary(nn::Embedding& embedding, const comm::Group& group, bool parallel_in_training);

/// Shards the bias of a head with its embedding's vectors.
void cut_vocabulary(nn::TiedHead& head, const comm::Group& group);

}  // namespace trireme::shardformer
