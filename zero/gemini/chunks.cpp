#include "zero/gemini/chunks.h"

#include <algorithm>
#include <numeric>
#include <tuple>
#include <unordered_map>

#include "core/base/error.h"
#include "core/nn/block.h"

namespace trireme::zero {
namespace {

/// The position of a parameter's gradient in the order of backward passes: by gradient group, then by the first block
/// that uses it, from the last block to the first. -1: no block, after all others.
struct GradientPosition {
  int gradient_group;
  std::int64_t block;
  friend bool operator==(const GradientPosition&, const GradientPosition&) = default;
};

std::vector<GradientPosition> gradient_positions(nn::Model& model, const std::vector<nn::Declaration>& parameters,
                                                 const BucketRules& rules) {
  std::unordered_map<const void*, std::int64_t> first;
  std::int64_t number = 0;
  for (const auto& block : model.blocks()) {
    for (const auto& value : block->parameters()) first.emplace(value.unsafeGetTensorImpl(), number);
    ++number;
  }
  std::vector<GradientPosition> out;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto found = first.find(parameters[i].value.unsafeGetTensorImpl());
    out.push_back({rules.group_of(i), found == first.end() ? -1 : found->second});
  }
  return out;
}

std::vector<Bucket> plan(const std::vector<nn::Declaration>& parameters, const std::vector<GradientPosition>& positions,
                         const BucketRules& rules) {
  std::vector<std::size_t> order(parameters.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  // The order of registration may differ from that of the blocks.
  const auto key = [&](std::size_t i) { return std::tuple(-positions[i].gradient_group, positions[i].block, i); };
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return key(a) > key(b); });
  return cut_in_order(parameters, order, rules,
                      [&](std::size_t first, std::size_t next) { return positions[first] == positions[next]; });
}

}  // namespace

std::vector<Bucket> plan_chunks(nn::Model& model, const BucketRules& rules) {
  const auto parameters = nn::declarations(model);
  return plan(parameters, gradient_positions(model, parameters, rules), rules);
}

std::int64_t search_chunk_elements(nn::Model& model, const ChunkSearch& search, BucketRules rules) {
  TRIREME_CHECK(search.smallest >= 1 && search.range >= 0 && search.step >= 1,
                "invalid chunk search: from {} by {} over {}", search.smallest, search.step, search.range);
  const auto parameters = nn::declarations(model);
  const auto positions = gradient_positions(model, parameters, rules);
  std::int64_t best = search.smallest, least = -1;
  for (auto size = search.smallest; size <= search.smallest + search.range; size += search.step) {
    std::int64_t waste = 0, largest = 0;
    rules.elements = size;
    for (const auto& chunk : plan(parameters, positions, rules)) {
      waste += chunk.layout.total() - chunk.layout.payload();
      largest = std::max(largest, chunk.layout.payload());
    }
    if (least < 0 || waste < least) {
      least = waste;
      best = size;
    }
    if (largest < size) break;  // every block is one chunk, so larger sizes give the same plan
  }
  return best;
}

}  // namespace trireme::zero
