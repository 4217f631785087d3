#include "core/data/distributed_sampler.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "core/base/error.h"
#include "core/data/sampler.h"
#include "core/shard/placement.h"

namespace trireme::data {
namespace {

/// A number of samples, with the order that every data set has unless it defines another one.
class CountOnly final : public Dataset {
 public:
  explicit CountOnly(std::int64_t samples) : samples_(samples) {}
  std::int64_t size() const override { return samples_; }
  std::optional<Sample> get(std::int64_t, std::int64_t, bool) override { return std::nullopt; }

 private:
  std::int64_t samples_;
};

}  // namespace

DistributedSampler::DistributedSampler(std::int64_t samples, int ranks, int rank, DistributedSamplerOptions options)
    : DistributedSampler(std::make_shared<const CountOnly>(samples), ranks, rank, options) {}

DistributedSampler::DistributedSampler(std::shared_ptr<const Dataset> dataset, int ranks, int rank,
                                       DistributedSamplerOptions options)
    : ranks_(ranks), rank_(rank), options_(options) {
  TRIREME_REQUIRE(dataset != nullptr && dataset->size() > 0 && 0 <= rank && rank < ranks,
                  "DistributedSampler(samples = {}, ranks = {}, rank = {}): it needs at least one sample, and a rank "
                  "from 0 to ranks - 1",
                  dataset ? dataset->size() : 0, ranks, rank);
  TRIREME_REQUIRE(!(options.drop_last && options.even),
                  "DistributedSampler: drop_last leaves out samples, and even repeats some; set only one of the two");
  TRIREME_REQUIRE(options.global_batch >= 0, "DistributedSampler: global_batch = {} must be at least 0",
                  options.global_batch);
  order_ = [set = std::move(dataset), options](std::int64_t epoch) {
    return epoch_order(
        *set, options.shuffle ? std::optional(Shuffle{options.seed, epoch, options.global_batch}) : std::nullopt);
  };
  set_epoch(0);
}

void DistributedSampler::set_epoch(std::int64_t epoch) {
  TRIREME_REQUIRE(epoch >= 0, "DistributedSampler::set_epoch({}): epochs count from 0", epoch);
  const auto order = order_(epoch);
  const auto samples = static_cast<std::int64_t>(order.size());
  auto end = samples;  // of the positions that all ranks share, beyond which the order repeats
  if (options_.drop_last) end = samples / ranks_ * ranks_;
  if (options_.even) end = (samples + ranks_ - 1) / ranks_ * ranks_;
  indices_.clear();
  const auto add = [&](std::int64_t at) { indices_.push_back(order[static_cast<std::size_t>(at % samples)]); };
  const auto batch = options_.global_batch;
  for (std::int64_t at = rank_; batch == 0 && at < end; at += ranks_) add(at);
  for (std::int64_t begin = 0; batch > 0 && begin < end; begin += batch) {
    const auto part = shard::split(std::min(batch, end - begin), ranks_, rank_);
    for (auto at = begin + part.begin; at < begin + part.end; ++at) add(at);
  }
  epoch_ = epoch;
}

}  // namespace trireme::data
