#include "zero/gemini/chunks.h"

#include <algorithm>
#include <numeric>
#include <unordered_map>

#include "core/base/error.h"
#include "core/nn/block.h"

namespace trireme::zero {
namespace {

/// Of each parameter, the first block that has it; those of no block have the number after the last.
std::vector<std::size_t> block_of(nn::Model& model, const std::vector<nn::Declaration>& parameters) {
  std::unordered_map<const void*, std::size_t> first;
  const auto& blocks = model.blocks();
  for (std::size_t b = 0; b < blocks.size(); ++b)
    for (const auto& value : blocks[b]->parameters()) first.emplace(value.unsafeGetTensorImpl(), b);
  std::vector<std::size_t> out;
  for (const auto& parameter : parameters) {
    const auto found = first.find(parameter.value.unsafeGetTensorImpl());
    out.push_back(found == first.end() ? blocks.size() : found->second);
  }
  return out;
}

std::vector<Bucket> plan(const std::vector<nn::Declaration>& parameters, const std::vector<std::size_t>& blocks,
                         std::size_t nowhere, std::int64_t elements, int parts) {
  std::vector<std::size_t> order(parameters.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  // The registration order need not be that of the blocks. Those of no block have no gradient: they come last.
  const auto rank = [&](std::size_t i) { return std::pair(blocks[i], i); };
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return rank(a) > rank(b); });
  std::stable_partition(order.begin(), order.end(), [&](std::size_t i) { return blocks[i] < nowhere; });
  return cut_in_order(parameters, order, elements, parts,
                      [&](std::size_t first, std::size_t next) { return blocks[first] == blocks[next]; });
}

}  // namespace

std::vector<Bucket> plan_chunks(nn::Model& model, std::int64_t elements, int parts) {
  TRIREME_CHECK(elements >= 1, "chunks of {} elements", elements);
  const auto parameters = nn::declarations(model);
  return plan(parameters, block_of(model, parameters), model.blocks().size(), elements, parts);
}

std::int64_t search_chunk_elements(nn::Model& model, const ChunkSearch& search, int parts) {
  TRIREME_CHECK(search.smallest >= 1 && search.range >= 0 && search.step >= 1, "chunks from {} by {} over {}",
                search.smallest, search.step, search.range);
  const auto parameters = nn::declarations(model);
  const auto blocks = block_of(model, parameters);
  std::int64_t best = search.smallest, least = -1;
  for (auto size = search.smallest; size <= search.smallest + search.range; size += search.step) {
    std::int64_t waste = 0, largest = 0;
    for (const auto& chunk : plan(parameters, blocks, model.blocks().size(), size, parts)) {
      waste += chunk.layout.total() - chunk.layout.payload();
      largest = std::max(largest, chunk.layout.payload());
    }
    if (least < 0 || waste < least) {
      least = waste;
      best = size;
    }
    if (largest < size) break;  // every block is one chunk: a larger size plans the same
  }
  return best;
}

}  // namespace trireme::zero
