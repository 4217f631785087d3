// Loader: global batches in a seeded order, each rank's share decoded ahead on worker threads.
//
// Contract C3: global batch s of an epoch is positions [s*G, min((s+1)*G, n)) of that epoch's permutation. Its n_s
// samples are split over the data-parallel ranks by shard::split (shares differ by at most one). Every rank runs
// ceil(largest share / micro_batch) microbatches; the last ones may be smaller or empty on some ranks.
// Evaluation: no shuffle, no augmentation, every sample exactly once over all ranks.
//
// A sample that cannot be read (data.on_bad_sample = skip) keeps its place in training: the next readable one by
// number stands in for it, the same on every rank, so that every batch has as many samples as all ranks count on. In
// evaluation nothing may be counted twice: there it is left out, and global_samples and global_weight are what the
// batch would have held; who evaluates divides by the samples it saw.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <memory>
#include <optional>

#include "core/data/batch.h"
#include "core/data/dataset.h"

namespace trireme::data {

struct LoaderOptions {
  std::int64_t global_batch = 1;
  std::int64_t micro_batch = 1;
  int dp_rank = 0, dp_size = 1;
  std::uint64_t seed = 0;
  bool shuffle = false;
  bool augment = false;
  bool drop_last = false;
  bool inputs = true;      ///< false: labels and numbers alone are read; inputs have their shapes, and no memory (meta)
  bool one_shape = false;  ///< all samples must have the first one's: other ranks go by that, and read none
  bool evaluation = false;  ///< unreadable samples are left out, not replaced; excludes the three above
  std::int64_t workers = 1;
  std::int64_t prefetch = 2;
  at::ScalarType dtype = at::kFloat;  ///< of floating inputs
  c10::Device device = at::kCPU;
};

/// Each rank needs a sample of every global batch. @throws ConfigError
void check_shares(std::int64_t global_batch, int ranks);

/// Used by one thread; its workers are its own, and end with it, at any time.
class Loader {
 public:
  /// @throws ConfigError: more ranks than global_batch; DataError: no samples, or none left by drop_last.
  Loader(std::shared_ptr<Dataset> dataset, LoaderOptions options);
  ~Loader();
  Loader(const Loader&) = delete;

  [[nodiscard]] std::int64_t size() const;             ///< samples of the data set
  [[nodiscard]] std::int64_t steps_per_epoch() const;  ///< ceil(n / G), or floor with drop_last
  [[nodiscard]] std::int64_t micro_per_step() const;   ///< of a full global batch
  [[nodiscard]] const LoaderOptions& options() const;

  /// Begins epoch `epoch` (from 0) at step `first_step` of it: the same batches as if it had run there.
  void start_epoch(std::int64_t epoch, std::int64_t first_step = 0);
  /// The next step's share of this rank, or nullopt at the end of the epoch. Rethrows what a worker threw, once the
  /// steps before it are delivered; of several errors in a step, the first in sample order.
  std::optional<StepBatch> next();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace trireme::data
