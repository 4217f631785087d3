#include "zero/buckets.h"

#include <algorithm>
#include <numeric>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "core/base/error.h"
#include "core/nn/block.h"

namespace trireme::zero {
namespace {

/// Buckets that are being filled: one for each set of ranks.
class OpenBuckets {
 public:
  OpenBuckets(const std::vector<nn::Declaration>& parameters, const BucketRules& rules, bool trained,
              std::vector<Bucket>& out)
      : parameters_(parameters), rules_(rules), trained_(trained), out_(out) {}

  void add(std::size_t parameter, const std::function<bool(std::size_t first, std::size_t next)>& may_join) {
    if (const auto group = rules_.group_of(parameter); group != gradient_group_) {
      close_all();  // the buckets of a gradient group are consecutive
      gradient_group_ = group;
    }
    auto& open = of(parameters_[parameter].placement);
    if (!open.parameters.empty() && !may_join(open.parameters.front(), parameter)) close(open);
    open.parameters.push_back(parameter);
    open.sizes.push_back(parameters_[parameter].placement.local_numel());
    open.filled += open.sizes.back();
    if (open.filled >= rules_.elements) close(open);
  }
  void close_all() {
    for (auto& open : open_) close(open);
  }

 private:
  struct Open {
    std::shared_ptr<const ReducingRanks> ranks;
    std::vector<std::size_t> parameters{};
    std::vector<std::int64_t> sizes{};
    std::int64_t filled = 0;
  };
  Open& of(const shard::Placement& placement) {
    const auto ranks = rules_.ranks != nullptr ? rules_.ranks->of(placement) : nullptr;
    for (auto& open : open_)
      if (open.ranks == ranks) return open;
    return open_.emplace_back(Open{ranks});
  }
  void close(Open& open) {
    if (open.parameters.empty()) return;
    const int parts = open.ranks ? open.ranks->shards.size() : rules_.parts;
    out_.push_back({std::move(open.parameters), FlatLayout(open.sizes, parts), trained_, gradient_group_, open.ranks});
    open = {open.ranks};
  }

  const std::vector<nn::Declaration>& parameters_;
  const BucketRules& rules_;
  bool trained_;
  std::vector<Bucket>& out_;
  std::vector<Open> open_;
  int gradient_group_ = 0;
};

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

/// Partitions the floating-point parameters of `order` (indices), the trained ones before the frozen ones. A bucket is
/// closed before a parameter for which may_join(first of the bucket, parameter) is false.
std::vector<Bucket> cut_in_order(const std::vector<nn::Declaration>& parameters, const std::vector<std::size_t>& order,
                                 const BucketRules& rules,
                                 const std::function<bool(std::size_t first, std::size_t next)>& may_join) {
  TRIREME_CHECK(rules.elements >= 1, "invalid bucket size of {} elements", rules.elements);
  std::vector<Bucket> out;
  for (const bool trained : {true, false}) {
    OpenBuckets open(parameters, rules, trained, out);
    for (const auto i : order) {
      const auto& value = parameters[i].value;
      if (value.is_floating_point() && value.requires_grad() == trained) open.add(i, may_join);
    }
    open.close_all();
  }
  return out;
}

std::vector<Bucket> plan_in_blocks(const std::vector<nn::Declaration>& parameters,
                                   const std::vector<GradientPosition>& positions, const BucketRules& rules) {
  std::vector<std::size_t> order(parameters.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  // The order of registration may differ from that of the blocks.
  const auto key = [&](std::size_t i) { return std::tuple(-positions[i].gradient_group, positions[i].block, i); };
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return key(a) > key(b); });
  return cut_in_order(parameters, order, rules,
                      [&](std::size_t first, std::size_t next) { return positions[first] == positions[next]; });
}

}  // namespace

std::vector<Bucket> plan_buckets(const std::vector<nn::Declaration>& parameters, const BucketRules& rules) {
  std::vector<std::size_t> order(parameters.size());
  std::iota(order.rbegin(), order.rend(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return rules.group_of(a) < rules.group_of(b); });
  return cut_in_order(parameters, order, rules, [](std::size_t, std::size_t) { return true; });
}

std::vector<Bucket> plan_chunks(nn::Model& model, const BucketRules& rules) {
  const auto parameters = nn::declarations(model);
  return plan_in_blocks(parameters, gradient_positions(model, parameters, rules), rules);
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
    for (const auto& chunk : plan_in_blocks(parameters, positions, rules)) {
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

std::int64_t default_bucket_elements(std::int64_t model_elements) {
  constexpr std::int64_t kLargest = 12 * 1024 * 1024, kSmallest = 64 * 1024;
  return std::clamp(model_elements / 8, kSmallest, kLargest);
}

shard::Placement placement_of(const nn::Declaration& parameter, const Bucket& bucket, std::size_t item) {
  auto placement = parameter.placement;
  placement.flat = bucket.layout.owned(item, bucket.ranks->shards.rank());
  if (bucket.layout.parts() > 1) placement.flat_axes = bucket.ranks->axes;
  return placement;
}

}  // namespace trireme::zero
