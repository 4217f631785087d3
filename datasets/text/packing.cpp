#include "datasets/text/packing.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "core/base/error.h"

namespace trireme::datasets {
namespace {

constexpr const char* kDocuments = "document_ids";
constexpr const char* kPositions = "position_ids";

}  // namespace

std::vector<std::vector<std::int64_t>> pack_best_fit(std::span<const std::int64_t> lengths, std::int64_t block) {
  std::vector<std::int64_t> order(lengths.size());
  std::iota(order.begin(), order.end(), 0);
  const auto length = [&](std::int64_t i) { return lengths[static_cast<std::size_t>(i)]; };
  std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return length(a) > length(b); });
  std::vector<std::vector<std::int64_t>> blocks;
  std::set<std::pair<std::int64_t, std::size_t>> spaces;  // what is left of each block, and its number
  for (const auto i : order) {
    TRIREME_CHECK(length(i) <= block, "a sequence of {} tokens for a block of {}", length(i), block);
    const auto found = spaces.lower_bound({length(i), 0});
    const auto [space, number] = found == spaces.end() ? std::pair(block, blocks.size()) : *found;
    if (found == spaces.end())
      blocks.emplace_back();
    else
      spaces.erase(found);
    blocks[number].push_back(i);
    spaces.emplace(space - length(i), number);
  }
  return blocks;
}

std::vector<nn::SampleTensor> document_inputs(std::int64_t block) {
  return {{kDocuments, at::kLong, {block}}, {kPositions, at::kLong, {block}}};
}

DocumentInputs::DocumentInputs(std::int64_t block)
    : ids_(at::zeros({block}, at::kLong)), positions_(at::zeros({block}, at::kLong)) {}

void DocumentInputs::add(std::int64_t tokens) {
  ids_.narrow(0, tokens_, tokens).fill_(++documents_);
  positions_.narrow(0, tokens_, tokens).copy_(at::arange(tokens, at::kLong));
  tokens_ += tokens;
}

void DocumentInputs::set_in(nn::NamedTensors& inputs, const std::vector<std::string>& wanted) const {
  for (const auto& [name, value] : {std::pair(kDocuments, ids_), std::pair(kPositions, positions_)})
    if (std::find(wanted.begin(), wanted.end(), name) != wanted.end()) inputs.set(name, value);
}

}  // namespace trireme::datasets
