// DistributedSampler: the samples that one rank reads in an epoch, for a training loop written by hand.
//
//   DistributedSampler sampler(train_set, world.size(), world.rank(), {.seed = 42});
//   for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
//     sampler.set_epoch(epoch);                       // another order in each epoch
//     for (const std::int64_t index : sampler) ...
//   }
//
// Rank r of N has the positions r, r + N, r + 2 N, ... of the epoch's order, which is that of every Trireme loader with
// the same seed. The k-th batch of B samples on each rank is therefore, over all ranks, the k-th global batch of N x B.
//
// Each sample is on exactly one rank, so the ranks' sizes may differ by one. PyTorch's class of this name repeats
// samples instead until all sizes are equal. A loop that communicates in each step needs the same number of batches on
// every rank: if N x B does not divide the set, choose `even` (some samples count twice) or `drop_last` (some are left
// out).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "core/data/dataset.h"

namespace trireme {
namespace data {

struct DistributedSamplerOptions {
  bool shuffle = true;
  std::uint64_t seed = 0;
  bool drop_last = false;  ///< leaves out the last samples of the order that do not give each rank one more
  /// 0: rank r has every N-th position, as with PyTorch. Else it has the r-th part of each batch of so many positions,
  /// as in Trireme's loaders: the ranks then add up the same samples, and the results are equal in every bit.
  std::int64_t global_batch = 0;
  bool even = false;  ///< repeats the first samples of the order until all ranks have equally many, as PyTorch does
};

class DistributedSampler {
 public:
  /// @throws UsageError: no samples, a rank outside its range, both `drop_last` and `even`
  DistributedSampler(std::int64_t samples, int ranks, int rank, DistributedSamplerOptions options = {});
  /// For a data set whose shuffled order is its own (Dataset::order()).
  DistributedSampler(std::shared_ptr<const Dataset> dataset, int ranks, int rank,
                     DistributedSamplerOptions options = {});

  /// Selects the order of epoch `epoch`, which counts from 0. A new sampler has that of epoch 0.
  void set_epoch(std::int64_t epoch);
  [[nodiscard]] std::int64_t epoch() const { return epoch_; }
  /// The number of samples of this rank in an epoch.
  [[nodiscard]] std::int64_t size() const { return static_cast<std::int64_t>(indices_.size()); }
  [[nodiscard]] const std::vector<std::int64_t>& indices() const { return indices_; }
  [[nodiscard]] auto begin() const { return indices_.begin(); }
  [[nodiscard]] auto end() const { return indices_.end(); }

 private:
  using Order = std::function<std::vector<std::int64_t>(std::int64_t epoch)>;
  Order order_;
  int ranks_, rank_;
  DistributedSamplerOptions options_;
  std::int64_t epoch_ = 0;
  std::vector<std::int64_t> indices_;
};

}  // namespace data

using data::DistributedSampler;
using data::DistributedSamplerOptions;

}  // namespace trireme
