#include "zero/buckets.h"

#include <algorithm>

#include "core/base/error.h"

namespace trireme::zero {
namespace {

std::int64_t numel_of(const nn::Declaration& parameter) {
  return shard::Placement::whole(parameter.name, parameter.shape).full_numel();
}

void plan(const std::vector<nn::Declaration>& parameters, std::int64_t elements, int parts, bool trained,
          std::vector<Bucket>& out) {
  std::vector<std::size_t> open;
  std::vector<std::int64_t> sizes;
  std::int64_t filled = 0;
  const auto close = [&] {
    if (!open.empty()) out.push_back({open, FlatLayout(sizes, parts), trained});
    open.clear();
    sizes.clear();
    filled = 0;
  };
  for (std::size_t i = parameters.size(); i-- > 0;) {
    const auto& value = parameters[i].value;
    if (!value.is_floating_point() || value.requires_grad() != trained) continue;
    open.push_back(i);
    sizes.push_back(numel_of(parameters[i]));
    filled += sizes.back();
    if (filled >= elements) close();
  }
  close();
}

}  // namespace

std::vector<Bucket> plan_buckets(const std::vector<nn::Declaration>& parameters, std::int64_t elements, int parts) {
  TRIREME_CHECK(elements >= 1, "buckets of {} elements", elements);
  std::vector<Bucket> buckets;
  plan(parameters, elements, parts, true, buckets);
  plan(parameters, elements, parts, false, buckets);
  return buckets;
}

std::int64_t default_bucket_elements(std::int64_t model_elements) {
  constexpr std::int64_t kLargest = 12 * 1024 * 1024, kSmallest = 64 * 1024;
  return std::clamp(model_elements / 8, kSmallest, kLargest);
}

shard::Placement placement_of(const nn::Declaration& parameter, const Bucket& bucket, std::size_t item, int rank,
                              const std::string& axis) {
  auto placement = shard::Placement::whole(parameter.name, parameter.shape);
  placement.flat = bucket.layout.owned(item, rank);
  placement.sharded_axes = {axis};
  return placement;
}

}  // namespace trireme::zero
