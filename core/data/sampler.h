// Sampler: which samples each step uses, for one rank (contract C3; see loader.h). It is a pure function: the plan of
// any step can be computed anywhere, without having run the steps before it.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/data/dataset.h"
#include "core/shard/placement.h"

namespace trireme::data {

struct SamplerOptions {
  std::int64_t samples = 0;
  std::int64_t global_batch = 1, micro_batch = 1;
  int dp_rank = 0, dp_size = 1;
  bool drop_last = false;
};

/// One rank's part of one global batch, as positions in the epoch's sample order.
struct StepPlan {
  std::int64_t global_samples = 0;  ///< over all ranks
  shard::Range share;               ///< this rank's positions
  std::vector<shard::Range> micro;  ///< the share from 0, split; the same number on every rank, some may be empty
  std::int64_t after = 0;           ///< the position that follows the share in the global batch, or the batch's first
};

class Sampler {
 public:
  explicit Sampler(const SamplerOptions& options) : options_(options) {}

  [[nodiscard]] std::int64_t steps_per_epoch() const;
  [[nodiscard]] std::int64_t micro_per_step(std::int64_t global_samples) const;
  /// @pre 0 <= step < steps_per_epoch()
  [[nodiscard]] StepPlan step(std::int64_t step) const { return this->step(step, options_.dp_rank); }
  [[nodiscard]] StepPlan step(std::int64_t step, int dp_rank) const;  ///< of another rank

 private:
  SamplerOptions options_;
};

/// Maps position to sample index for a whole epoch: Dataset::order(), or 0, 1, ... if `shuffle` is unset.
/// @throws UsageError when a data set's own order is no permutation of its samples
std::vector<std::int64_t> epoch_order(const Dataset& dataset, const std::optional<Shuffle>& shuffle);

}  // namespace trireme::data
