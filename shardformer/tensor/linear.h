// Tensor-parallel linear layers: y_r = x W_r^T + b_r (column), and y = sum_r (x_r W_r^T) + b (row). Under the modes of
// sequence parallelism that reuse the tensor-parallel ranks, x of a column and y of a row are slices of the tokens.
#pragma once

#include <vector>

#include "core/shardformer/role.h"
#include "shardformer/tensor/column.h"

namespace trireme::shardformer {

/// x W^T, summed over the ranks: x [..., part of in] -> this rank's slice of the tokens, or all of them.
at::Tensor row_product(const at::Tensor& x, const at::Tensor& weight, const ParallelGroups& groups);
/// The products of x with each branch. If ranks hold slices of x, they are all-gathered or passed around the ring.
std::vector<at::Tensor> products(const at::Tensor& x, const std::vector<Branch>& branches, const nn::Context& context,
                                 const ParallelGroups& groups);

}  // namespace trireme::shardformer
