// Column- and row-parallel products of slices of tokens (shardformer/sequence/slices.h), with a ring instead of
// collectives. The results are those of split_gather, but each hop overlaps with a part of the product, in the forward
// and in the backward pass. No full tensor is saved.
#pragma once

#include <vector>

#include "shardformer/tensor/column.h"

namespace trireme::shardformer {

/// Like column_products_of_slices(). Communication per rank, in units of the full x less one slice: one forward, two
/// backward.
std::vector<at::Tensor> column_products_by_ring(const at::Tensor& x, std::int64_t tokens,
                                                const std::vector<Branch>& branches, const comm::Group& group,
                                                bool overlap = true);

/// x [B, N, part of in] -> this rank's slice of the sum over the ranks of x weight^T, [B, slice of N, out].
/// Communication per rank, in units of the full sum less one slice: one forward, one backward.
at::Tensor row_product_by_ring(const at::Tensor& x, const at::Tensor& weight, const comm::Group& group,
                               bool overlap = true);

}  // namespace trireme::shardformer
