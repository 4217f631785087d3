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

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/fields.h"
#include "core/data/batch.h"
#include "core/data/dataset.h"

namespace trireme::data {

/// How a rank's samples are prepared: keys of [data] that all data sets have.
struct LoadingOptions {
  std::optional<std::int64_t> workers{};  ///< threads per rank that read samples; unset: by the machine's cores
  std::int64_t prefetch = 2;              ///< steps whose samples are loaded ahead
};
const Fields<LoadingOptions>& loading_fields();

struct LoaderOptions {
  std::int64_t global_batch = 1;
  std::int64_t micro_batch = 1;
  int dp_rank = 0, dp_size = 1;
  std::uint64_t seed = 0;
  bool shuffle = false;
  bool augment = false;
  bool drop_last = false;
  /// The inputs that this rank needs; unset: all. The others are on the meta device. Those whose size varies are read
  /// all the same, because every rank needs their shapes.
  std::optional<std::vector<std::string>> needed{};
  bool strict = false;      ///< samples must have the shapes of the data set's spec(), on which other ranks rely
  bool evaluation = false;  ///< unreadable samples are left out, not replaced; excludes shuffle, augment and drop_last
  std::int64_t workers = 1;
  std::int64_t prefetch = 2;
  at::ScalarType dtype = at::kFloat;  ///< for floating-point inputs and targets
  c10::Device device = at::kCPU;
  /// Called by next() with the step that it returns, whose tensors are on the device.
  std::function<void(StepBatch& step)> on_next{};
};

/// Checks that each rank gets a sample of every full global batch. @throws ConfigError
void check_shares(std::int64_t global_batch, int ranks);

/// Steps of one epoch, before there is a loader. Throws what Loader's constructor throws.
std::int64_t steps_per_epoch(const Dataset& dataset, const LoaderOptions& options);

/// For use by one thread. It owns its worker threads and can be destroyed at any time.
class Loader {
 public:
  /// @throws ConfigError: more ranks than global_batch; DataError: no samples, or drop_last leaves none.
  Loader(std::shared_ptr<Dataset> dataset, LoaderOptions options);
  ~Loader();
  Loader(const Loader&) = delete;

  [[nodiscard]] std::int64_t size() const;             ///< samples of the data set
  [[nodiscard]] std::int64_t steps_per_epoch() const;  ///< ceil(n / G), or floor with drop_last
  [[nodiscard]] std::int64_t micro_per_step() const;   ///< for a full global batch
  [[nodiscard]] const LoaderOptions& options() const;

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
