#include "zero/gemini/chunks.h"

#include <algorithm>
#include <numeric>
#include <unordered_map>
#include <utility>

#include "core/base/error.h"
#include "core/nn/block.h"

namespace trireme::zero {
namespace {

/// Of each parameter, the first block that has it; -1: none, so that it stands behind all in the order of a backward
/// pass.
std::vector<std::int64_t> block_of(nn::Model& model, const std::vector<nn::Declaration>& parameters) {
  std::unordered_map<const void*, std::int64_t> first;
  std::int64_t number = 0;
  for (const auto& block : model.blocks()) {
    for (const auto& value : block->parameters()) first.emplace(value.unsafeGetTensorImpl(), number);
    ++number;
  }
  std::vector<std::int64_t> out;
  for (const auto& parameter : parameters) {
    const auto found = first.find(parameter.value.unsafeGetTensorImpl());
    out.push_back(found == first.end() ? -1 : found->second);
  }
  return out;
}

std::vector<Bucket> plan(const std::vector<nn::Declaration>& parameters, const std::vector<std::int64_t>& blocks,
                         std::int64_t elements, int parts) {
  std::vector<std::size_t> order(parameters.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  // The registration order need not be that of the blocks.
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return std::pair(blocks[a], a) > std::pair(blocks[b], b); });
  return cut_in_order(parameters, order, elements, parts,
                      [&](std::size_t first, std::size_t next) { return blocks[first] == blocks[next]; });
}

}  // namespace

std::vector<Bucket> plan_chunks(nn::Model& model, std::int64_t elements, int parts) {
  const auto parameters = nn::declarations(model);
  return plan(parameters, block_of(model, parameters), elements, parts);
}

std::int64_t search_chunk_elements(nn::Model& model, const ChunkSearch& search, int parts) {
  TRIREME_CHECK(search.smallest >= 1 && search.range >= 0 && search.step >= 1, "chunks from {} by {} over {}",
                search.smallest, search.step, search.range);
  const auto parameters = nn::declarations(model);
  const auto blocks = block_of(model, parameters);
  std::int64_t best = search.smallest, least = -1;
  for (auto size = search.smallest; size <= search.smallest + search.range; size += search.step) {
    std::int64_t waste = 0, largest = 0;
    for (const auto& chunk : plan(parameters, blocks, size, parts)) {
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
