// Column- and row-parallel products of slices of tokens (shardformer/slices.h), with a ring instead of collectives: the
// numbers of split_gather, each hop beside a part of the product. Backward as forward; nothing whole is kept.
#pragma once

#include <vector>

#include "shardformer/column.h"

namespace trireme::shardformer {

/// As column_products_of_slices(). Traffic a rank, in elements of the whole x but for one slice: one forward, two
/// backward.
std::vector<at::Tensor> column_products_by_ring(const at::Tensor& x, std::int64_t tokens,
                                                const std::vector<Branch>& branches, const comm::Group& group,
                                                bool overlap = true);

/// x [B, N, some of in] -> this rank's slice of the sum over the ranks of x weight^T, [B, some of N, out]. Traffic a
/// rank, in elements of the whole sum but for one slice: one forward, one backward.
at::Tensor row_product_by_ring(const at::Tensor& x, const at::Tensor& weight, const comm::Group& group,
                               bool overlap = true);

}  // namespace trireme::shardformer
