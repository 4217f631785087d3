#include "zero/buckets.h"

#include <algorithm>
#include <numeric>

#include "core/base/error.h"

namespace trireme::zero {
std::vector<Bucket> cut_in_order(const std::vector<nn::Declaration>& parameters, const std::vector<std::size_t>& order,
                                 std::int64_t elements, int parts,
                                 const std::function<bool(std::size_t first, std::size_t next)>& may_join) {
  TRIREME_CHECK(elements >= 1, "invalid bucket size of {} elements", elements);
  std::vector<Bucket> out;
  for (const bool trained : {true, false}) {
    std::vector<std::size_t> open;
    std::vector<std::int64_t> sizes;
    std::int64_t filled = 0;
    const auto close = [&] {
      if (!open.empty()) out.push_back({open, FlatLayout(sizes, parts), trained});
      open.clear();
      sizes.clear();
      filled = 0;
    };
    for (const auto i : order) {
      const auto& value = parameters[i].value;
      if (!value.is_floating_point() || value.requires_grad() != trained) continue;
      if (!open.empty() && !may_join(open.front(), i)) close();
      open.push_back(i);
      sizes.push_back(parameters[i].placement.local_numel());
      filled += sizes.back();
      if (filled >= elements) close();
    }
    close();
  }
  return out;
}

std::vector<Bucket> plan_buckets(const std::vector<nn::Declaration>& parameters, std::int64_t elements, int parts) {
  return plan_buckets(parameters, elements, parts, [](std::size_t) { return 0; });
}

std::vector<Bucket> plan_buckets(const std::vector<nn::Declaration>& parameters, std::int64_t elements, int parts,
                                 const std::function<int(std::size_t)>& group_of) {
  std::vector<std::size_t> order(parameters.size());
  std::iota(order.rbegin(), order.rend(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return group_of(a) < group_of(b); });
  auto buckets = cut_in_order(parameters, order, elements, parts,
                              [&](std::size_t first, std::size_t next) { return group_of(first) == group_of(next); });
  for (auto& bucket : buckets) bucket.gradient_group = group_of(bucket.parameters.front());
  return buckets;
}

std::int64_t default_bucket_elements(std::int64_t model_elements) {
  constexpr std::int64_t kLargest = 12 * 1024 * 1024, kSmallest = 64 * 1024;
  return std::clamp(model_elements / 8, kSmallest, kLargest);
}

shard::Placement placement_of(const nn::Declaration& parameter, const Bucket& bucket, std::size_t item, int rank,
                              const std::vector<std::string>& axes) {
  auto placement = parameter.placement;
  placement.flat = bucket.layout.owned(item, rank);
  if (bucket.layout.parts() > 1) placement.sharded_axes.insert(placement.sharded_axes.end(), axes.begin(), axes.end());
  return placement;
}

}  // namespace trireme::zero
