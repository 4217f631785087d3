// Tensor-parallel linear layers: y_r = x W_r^T + b_r (column), and y = sum_r (x_r W_r^T) + b (row). Under the modes of
// sequence parallelism that reuse the tensor-parallel ranks, x of a column and y of a row are slices of the tokens.
#pragma once

#include <vector>

#include "core/nn/layers/gated_linear.h"
#include "shardformer/tensor/column.h"
#include "shardformer/tensor/features.h"

namespace trireme::shardformer {

/// The role column_parallel. Both halves of a gated layer are sharded together.
void cut_column(nn::Linear& linear, const ParallelContext& how);
void cut_column(nn::GatedLinear& gated, const ParallelContext& how);
/// The role column_parallel_gather_output, and classifier_head. `parallel_in_training`: in training the outputs stay
/// sharded.
void cut_column_gathered(nn::Linear& linear, const comm::Group& group, bool parallel_in_training);
/// The role row_parallel.
void cut_row(nn::Linear& linear, const ParallelContext& how);

/// x W^T, summed over the ranks: x [..., part of in] -> this rank's slice of the tokens, or all of them.
at::Tensor row_product(const at::Tensor& x, const at::Tensor& weight, const ParallelGroups& groups);
/// The products of x with each branch. If ranks hold slices of x, they are all-gathered or passed around the ring.
std::vector<at::Tensor> products(const at::Tensor& x, const std::vector<Branch>& branches, const nn::Context& context,
                                 const ParallelGroups& groups);

}  // namespace trireme::shardformer
