// Column-parallel products: several linear layers of one input, whose outputs are sharded over the ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "core/comm/group.h"

namespace trireme::shardformer {

constexpr std::int64_t kAllTokens = -1;

struct Branch {
  at::Tensor weight, bias;           ///< [part of out, in], [part of out] or undefined
  std::int64_t tokens = kAllTokens;  ///< number of leading tokens of x (dim 1) that it reads
};

/// x [B, ..., in], the same on each rank of the group -> [B, ..., part of out] for each branch, computed like
/// at::linear. Backward: the gradients of x are summed over the branches, then over the ranks in one all-reduce
/// (numel(x) elements) that overlaps with the weights' gradients.
std::vector<at::Tensor> column_products(const at::Tensor& x, const std::vector<Branch>& branches,
                                        const comm::Group& group);

/// The same if each rank has a slice of x's `tokens` tokens (shardformer/sequence/slices.h): the slices are
/// all-gathered first. Backward: x is all-gathered again for the weights' gradients, instead of being saved; the
/// gradient of x is reduce-scattered while these are computed. Without `overlap`, each operation is waited for at once.
/// Communication, in units of the full x: one forward, two backward.
std::vector<at::Tensor> column_products_of_slices(const at::Tensor& x, std::int64_t tokens,
                                                  const std::vector<Branch>& branches, const comm::Group& group,
                                                  bool overlap = true);

}  // namespace trireme::shardformer
