// Loader: global batches in a seeded order; worker threads decode each rank's share ahead of time.
//
// Contract C3: global batch s of an epoch is positions [s*G, min((s+1)*G, n)) of that epoch's permutation. Its n_s
// samples are split over the data-parallel ranks by shard::split (shares differ by at most one). Every rank runs
// ceil(largest share / micro_batch) microbatches; the last ones may be smaller or empty on some ranks.
// Evaluation: no shuffle, no augmentation, every sample exactly once over all ranks.
//
// In training, an unreadable sample (data.on_bad_sample = skip) is replaced by the next readable one by index, the same
// on every rank, so every batch has the size that all ranks expect. In evaluation no sample may count twice, so it is
// left out; global_samples and global_weight then still count it, and the caller must divide by what it has seen.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "core/data/batch.h"
#include "core/data/dataset.h"
#include "core/data/loader_options.h"

namespace trireme::data {

/// For use by one thread. It owns its worker threads and can be destroyed at any time.
class Loader {
 public:
  /// @throws ConfigError: more ranks than global_batch, an exchange of samples of different shapes; DataError: no
  /// samples, or drop_last leaves none.
  Loader(std::shared_ptr<Dataset> dataset, LoaderOptions options);
  ~Loader();
  Loader(const Loader&) = delete;

  [[nodiscard]] std::int64_t size() const;             ///< samples of the data set
  [[nodiscard]] std::int64_t steps_per_epoch() const;  ///< ceil(n / G), or floor with drop_last
  [[nodiscard]] std::int64_t micro_per_step() const;   ///< for a full global batch
  [[nodiscard]] const LoaderOptions& options() const;
  /// Samples per second that each worker reads while it is not idle, since the loader was made; 0: none yet.
  [[nodiscard]] std::vector<double> worker_rates() const;

  /// Starts epoch `epoch` (from 0) at its step `first_step`, with the same batches as if the steps before had run.
  void start_epoch(std::int64_t epoch, std::int64_t first_step = 0);
  /// Returns this rank's share of the next step, or nullopt at the end of the epoch. Rethrows a worker's exception
  /// after the steps before it are delivered; of several exceptions in a step, the first in sample order. A loader from
  /// Booster::boost() sums the weight of the global batch here, so every data-parallel rank must call it.
  std::optional<StepBatch> next();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace trireme::data
