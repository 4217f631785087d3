// Vocabulary-parallel embedding: each rank holds the embeddings of some of the token ids. Shoeybi et al.,
// "Megatron-LM", 2019, section 3.
//
//   look-up   y = sum_r y_r            y_r: the embeddings of the token ids that rank r holds, zeros for the others
//   scores    [x W_0^T, x W_1^T, ...]  or only this rank's part, for a loss of sharded logits
//   (core/nn/layers/chunked_cross_entropy.h), or that loss without them (core/nn/layers/linear_cross_entropy.h)
//
// Communication: an all-reduce of the embeddings in the forward pass, an all-reduce of x's gradient in the backward
// pass of the scores, and an all-gather of the scores if they are gathered.
#include <ATen/TensorOperators.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/zeros.h>

#include "core/nn/layers/embedding.h"
#include "core/nn/layers/index_checks.h"
#include "core/nn/layers/linear_cross_entropy.h"
#include "core/nn/policy.h"
#include "core/shard/placement.h"
#include "shardformer/roles.h"
#include "shardformer/tensor/collectives.h"
#include "shardformer/tensor/column.h"
#include "shardformer/tensor/features.h"

namespace trireme::shardformer {
namespace {

/// The embeddings of this rank's token ids, zeros for the others.
at::Tensor look_up(const at::Tensor& token_ids, const at::Tensor& weight, shard::Range mine, std::int64_t padding_id) {
  if (mine.size() == 0) {
    auto shape = token_ids.sizes().vec();
    shape.push_back(weight.size(1));
    return at::zeros(shape, weight.options()) + weight.sum();  // adding weight.sum() connects the graph, so that the
                                                               // weight has an (empty) gradient
  }
  const auto is_local = token_ids.ge(mine.begin).logical_and_(token_ids.lt(mine.end));
  const bool pads = mine.begin <= padding_id && padding_id < mine.end;
  return at::embedding(weight, (token_ids - mine.begin) * is_local, pads ? padding_id - mine.begin : -1) *
         is_local.unsqueeze(-1);
}

/// `parallel_in_training`: in training the scores stay sharded.
void cut_embedding(nn::Embedding& embedding, const comm::Group& group, bool parallel_in_training) {
  const auto vocabulary = embedding.options().vocabulary;
  const auto mine = shard::split(vocabulary, group.size(), group.rank());
  embedding.cut("weight", 0, {mine}, group.axis());
  embedding.forward.replace([&embedding, group, vocabulary, mine](const at::Tensor& token_ids, const nn::Context&) {
    nn::check_token_ids(token_ids, vocabulary);
    return sum_over(look_up(token_ids, embedding.weight, mine, embedding.options().padding_id), group);
  });
  embedding.scores.replace([&embedding, group, vocabulary, parallel_in_training](
                               const at::Tensor& x, const nn::Context& context, const at::Tensor& bias) {
    const auto loss = nn::loss_in_place_of_scores({x, embedding.weight, bias, vocabulary, &group}, context);
    if (loss.defined()) return loss;
    auto y = column_products(x, {{embedding.weight, bias}}, group).front();
    return parallel_in_training && context.training ? y : gather_last_dim(y, vocabulary, 1, group);
  });
}

}  // namespace

void add_vocabulary_roles(Roles& roles) {
  using nn::Embedding;
  using Tokens = TensorRole::Tokens;
  const auto embedding = [](bool is_head) {
    return rule_for<Embedding>("an embedding", [is_head](Embedding& layer, const ParallelContext& how) {
      cut_embedding(layer, how.groups.tensor, is_head && how.groups.parallel_loss);
    });
  };
  const auto vocabulary = [](const nn::Layer& layer) {
    return dynamic_cast<const Embedding&>(layer).options().vocabulary;
  };
  // The bias of a head is sharded with its embedding's vectors.
  const auto cut_head = [](nn::TiedHead& head, const ParallelContext& how) {
    const auto& group = how.groups.tensor;
    head.cut("bias", 0, {units_of(head.embedding().options().vocabulary, 1, group)}, group.axis());
  };
  roles.tensor.add(nn::role::vocab_parallel_embedding, {embedding(false), Tokens::all_to_full})
      .add(nn::role::tied_embedding, {embedding(true), Tokens::all_to_full, /*is_head=*/true, vocabulary})
      .add(nn::role::tied_head, {rule_for<nn::TiedHead>("a tied head", cut_head), Tokens::all, /*is_head=*/true});
}

}  // namespace trireme::shardformer
