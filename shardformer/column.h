// Column-parallel products: several linear layers of one input, each of which has on every rank some of its outputs.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "core/comm/group.h"

namespace trireme::shardformer {

constexpr std::int64_t kAllTokens = -1;

struct Branch {
  at::Tensor weight, bias;           ///< [some of out, in], [some of out] or undefined
  std::int64_t tokens = kAllTokens;  ///< it reads the first so many of x's dim 1
};

/// x [B, ..., in], the same on each rank of the group -> one [B, ..., some of out] a branch, as at::linear computes it.
/// Backward: the gradients of x are added up over the branches, then over the ranks in one all-reduce (numel(x)
/// elements) that runs while the weights' gradients are computed.
std::vector<at::Tensor> column_products(const at::Tensor& x, const std::vector<Branch>& branches,
                                        const comm::Group& group);

/// The same where each rank has its slice of x's `tokens` tokens (shardformer/slices.h): they are gathered first.
/// Backward: x is gathered once more, for the weights' gradients, instead of being kept; its own gradient is
/// reduce-scattered while those are computed; without `overlap` each is waited for at once. Traffic, in elements of the
/// whole x: one forward, two backward.
std::vector<at::Tensor> column_products_of_slices(const at::Tensor& x, std::int64_t tokens,
                                                  const std::vector<Branch>& branches, const comm::Group& group,
                                                  bool overlap = true);

}  // namespace trireme::shardformer
