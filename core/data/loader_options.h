// How a loader reads samples and makes batches of them (loader.h).
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
#include "core/data/exchange.h"

namespace trireme::data {

/// How samples are read: keys of [data] that all data sets have.
struct LoadingOptions {
  std::optional<std::int64_t> workers{};  ///< threads per rank that read samples; unset: by the machine's cores
  std::int64_t prefetch = 2;              ///< steps whose samples are loaded ahead
  std::string on_bad_sample = "error";    ///< error | skip
  bool shard_data = false;                ///< each sample is read by one of all ranks, for all
  bool dispatch = false;                  ///< the first rank reads for all
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
  std::vector<std::string> side_inputs{};  ///< the inputs that all ranks need
  /// Set: ranks read samples for each other, and the loaders of all of them must be used alike. Needs a data set with
  /// rows.
  std::shared_ptr<const SampleExchange> exchange{};
  bool skips = false;       ///< some samples may be unreadable and skipped
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

/// @throws what Loader's constructor throws
void check_loader(Dataset& dataset, const LoaderOptions& options);
/// Checks that the samples of a data set that was opened can be read as `options` say. @throws ConfigError
void check_rows(Dataset& dataset, const LoadingOptions& options);
/// This rank's part of a sampler.
SamplerOptions sampler_options(const Dataset& dataset, const LoaderOptions& options);

/// Steps of one epoch, before there is a loader. Throws what Loader's constructor throws.
std::int64_t steps_per_epoch(Dataset& dataset, const LoaderOptions& options);

}  // namespace trireme::data
