#include "shardformer/tensor/vocabulary.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/zeros.h>

#include "core/nn/layers/index_checks.h"
#include "core/shard/placement.h"
#include "shardformer/tensor/collectives.h"
#include "shardformer/tensor/column.h"

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

}  // namespace

void cut_vocabulary(nn::Embedding& embedding, const comm::Group& group, bool parallel_in_training) {
  const auto vocabulary = embedding.options().vocabulary;
  const auto mine = shard::split(vocabulary, group.size(), group.rank());
  embedding.cut("weight", 0, {mine}, group.axis());
  embedding.forward.replace([&embedding, group, vocabulary, mine](const at::Tensor& token_ids, const nn::Context&) {
    nn::check_token_ids(token_ids, vocabulary);
    return sum_over(look_up(token_ids, embedding.weight, mine, embedding.options().padding_id), group);
  });
  embedding.scores.replace([&embedding, group, vocabulary, parallel_in_training](
                               const at::Tensor& x, const nn::Context& context, const at::Tensor& bias) {
    auto y = column_products(x, {{embedding.weight, bias}}, group).front();
    return parallel_in_training && context.training ? y : gather_last_dim(y, vocabulary, 1, group);
  });
}

void cut_vocabulary(nn::TiedHead& head, const comm::Group& group) {
  const auto vocabulary = head.embedding().options().vocabulary;
  head.cut("bias", 0, {shard::split(vocabulary, group.size(), group.rank())}, group.axis());
}

}  // namespace trireme::shardformer
