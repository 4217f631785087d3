#include "shardformer/tensor/lora.h"

#include <ATen/TensorOperators.h>

#include "core/nn/layers/lora.h"
#include "shardformer/sequence/sequence.h"
#include "shardformer/tensor/linear.h"

namespace trireme::shardformer {
namespace {

using nn::Context;
using nn::LoraAdapter;

/// A and the dropout, if x is a slice of the tokens.
void cut_adapter_input(const LoraAdapter& adapter, const ParallelGroups& groups) {
  if (groups.mode == Sequence::none) return;
  cut_token_wise(*adapter.a, groups);
  cut_token_wise(*adapter.dropout, groups);
}

}  // namespace

void cut_gathered_adapter(const nn::Linear& linear, const comm::Group& group) {
  if (linear.adapter() == nullptr) return;
  auto& b = *linear.adapter()->b;
  b.forward.replace([&b, group](const at::Tensor& reduced, const Context&) {
    return column_products(reduced, {{b.weight, {}}}, group).front();
  });
}

void cut_column_adapter(const nn::Linear& linear, const ParallelGroups& groups) {
  if (linear.adapter() == nullptr) return;
  cut_adapter_input(*linear.adapter(), groups);
  auto& b = *linear.adapter()->b;
  b.forward.replace([&b, groups](const at::Tensor& reduced, const Context& context) {
    return products(reduced, {{b.weight, {}}}, context, groups).front();
  });
}

void cut_row_adapter(const nn::Linear& linear, shard::Range mine, const ParallelGroups& groups) {
  if (linear.adapter() == nullptr) return;
  const auto& [a, b, dropout, scale] = *linear.adapter();
  a->cut("weight", 1, {mine}, groups.tensor.axis());
  dropout->mask_slice.replace([mine, width = linear.options().in, groups](const at::Tensor& x, const Context& context) {
    return slice_of_features(x, mine, width, context, groups);
  });
  a->forward.replace([weight_of = a.get(), groups](const at::Tensor& x, const Context&) {
    return row_product(x, weight_of->weight, groups);
  });
  if (reuses_tensor(groups.mode)) cut_token_wise(*b, groups);
}

void add_adapter_outputs(std::vector<at::Tensor>& y, const std::vector<nn::LinearGroup::OutputAdapter>& adapters,
                         const std::vector<Branch>& branches, const at::Tensor& x, const Context& context,
                         const ParallelGroups& groups) {
  for (std::size_t begin = 0, end = 0; begin < y.size(); begin = end) {
    const auto* adapter = adapters[begin].of;
    std::vector<Branch> of_adapter;  // outputs of one layer share its adapter, and follow each other
    for (end = begin; end < y.size() && adapters[end].of == adapter; ++end)
      of_adapter.push_back({adapters[end].weight, {}, branches[end].tokens});
    if (adapter == nullptr) continue;
    const auto added = products(adapter->reduce(x, context), of_adapter, context, groups);
    for (auto i = begin; i < end; ++i) y[i] = y[i] + added[i - begin];
  }
}

}  // namespace trireme::shardformer
