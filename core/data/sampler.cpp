#include "core/data/sampler.h"

#include <algorithm>
#include <numeric>

#include "core/base/error.h"

namespace trireme::data {

std::int64_t Sampler::steps_per_epoch() const {
  const auto n = options_.samples, batch = options_.global_batch;
  return options_.drop_last ? n / batch : (n + batch - 1) / batch;
}

std::int64_t Sampler::micro_per_step(std::int64_t global_samples) const {
  const auto largest = shard::split(global_samples, options_.dp_size, 0).size();  // rank 0 has a largest share
  return (largest + options_.micro_batch - 1) / options_.micro_batch;
}

StepPlan Sampler::step(std::int64_t step, int dp_rank) const {
  TRIREME_CHECK(step >= 0 && step < steps_per_epoch(), "there is no step {} in an epoch of {} steps", step,
                steps_per_epoch());
  const auto begin = step * options_.global_batch;
  const auto end = std::min(begin + options_.global_batch, options_.samples);
  StepPlan plan;
  plan.global_samples = end - begin;
  const auto share = shard::split(end - begin, options_.dp_size, dp_rank);
  plan.share = {begin + share.begin, begin + share.end};
  plan.after = plan.share.end < end ? plan.share.end : begin;
  for (std::int64_t m = 0; m < micro_per_step(plan.global_samples); ++m) {
    const auto from = std::min(m * options_.micro_batch, plan.share.size());
    plan.micro.push_back({from, std::min(from + options_.micro_batch, plan.share.size())});
  }
  return plan;
}

std::vector<std::int64_t> epoch_order(const Dataset& dataset, const std::optional<Shuffle>& shuffle) {
  const auto samples = static_cast<std::size_t>(dataset.size());
  if (!shuffle) {
    std::vector<std::int64_t> order(samples);
    std::iota(order.begin(), order.end(), 0);
    return order;
  }
  auto order = dataset.order(*shuffle);
  std::vector<bool> found(samples);
  for (const auto index : order)
    if (index >= 0 && index < dataset.size()) found[static_cast<std::size_t>(index)] = true;
  TRIREME_REQUIRE(order.size() == samples && std::find(found.begin(), found.end(), false) == found.end(),
                  "Dataset::order() returned {} indices that are no permutation of the {} samples; it must return each "
                  "index from 0 to size() - 1 once",
                  order.size(), samples);
  return order;
}

}  // namespace trireme::data
