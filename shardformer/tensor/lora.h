// Adapters (core/nn/layers/lora.h) of sharded layers. Only activations of r features are communicated for them:
//
//   the layer is           A                               B
//   column-parallel        whole                           cut as the layer's rows; its r inputs are all-gathered, and
//                                                          their gradients are summed, as x and its gradients are
//   row-parallel           cut as the layer's columns,     whole
//                          its r outputs are summed
//
// What is whole works on slices of the tokens where the layer's x or y is one, like a token_wise layer.
#pragma once

#include <vector>

#include "core/nn/layers/linear_group.h"
#include "shardformer/tensor/column.h"
#include "shardformer/tensor/features.h"

namespace trireme::shardformer {

// Each does nothing for a layer without an adapter.

/// For a layer that was cut along its outputs, with full tokens in x.
void cut_gathered_adapter(const nn::Linear& linear, const comm::Group& group);
/// For a column-parallel layer, whose x may be a slice of the tokens.
void cut_column_adapter(const nn::Linear& linear, const ParallelGroups& groups);
/// For a row-parallel layer, of whose inputs this rank holds the range `mine`.
void cut_row_adapter(const nn::Linear& linear, shard::Range mine, const ParallelGroups& groups);
/// Adds to each output y of attention's projections what its adapter adds, for the tokens that its branch reads.
void add_adapter_outputs(std::vector<at::Tensor>& y, const std::vector<nn::LinearGroup::OutputAdapter>& adapters,
                         const std::vector<Branch>& branches, const at::Tensor& x, const nn::Context& context,
                         const ParallelGroups& groups);

}  // namespace trireme::shardformer
