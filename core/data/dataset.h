// Dataset: samples by number. Thread-safe: the loader's workers call get() at the same time.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/log.h"
#include "core/comm/world.h"
#include "core/config/run_config.h"

namespace trireme::data {

enum class Split { train, validation, test };
const char* name_of(Split split);

struct Sample {
  std::vector<at::Tensor>
      inputs;  ///< without the batch dim: {pixel_values [3,H,W]}, float32 (float64 from a float64 file)
  std::int64_t label = 0;
};

class Dataset {
 public:
  virtual ~Dataset() = default;
  [[nodiscard]] virtual std::int64_t size() const = 0;
  /// Augmentation is a function of (seed, epoch, index) alone; none unless `augment`.
  /// @throws DataError that names the file; with on_bad_sample = skip, nullopt instead.
  virtual std::optional<Sample> get(std::int64_t index, std::int64_t epoch, bool augment) = 0;
  /// A sample's label alone. Unless overridden, by reading the sample.
  [[nodiscard]] virtual std::int64_t label(std::int64_t index);
  /// The numbers of the samples that get() found unreadable so far.
  [[nodiscard]] virtual std::vector<std::int64_t> skipped() const { return {}; }
  /// The inputs of a batch of no samples: {[0, 3, H, W]}. Unless overridden, as the first readable sample says.
  [[nodiscard]] virtual std::vector<at::Tensor> empty_inputs();
};

/// The three splits of a data source; a split that does not exist is null (only test may be missing).
struct DatasetInfo {
  std::vector<std::string> classes;  ///< label number -> name
  std::int64_t image_size = 0;       ///< pixels a side
  bool normalised = true;            ///< mean and std act on the pixels; false: they are numbers already
  /// Of the names and labels of the training images, in order; "" where the configuration determines the samples.
  std::string digest{};
};
struct Datasets {
  DatasetInfo info;
  std::shared_ptr<Dataset> train, validation, test;
};

/// Opens the source that options.name says, and checks it (splits, classes, no empty class) before any training. A
/// folder is listed by one rank of each host of `launch`, for all of them: every rank calls this.
/// @throws DataError.
Datasets open(const config::DataOptions& options, std::uint64_t seed, const Log& log,
              const comm::LaunchInfo& launch = {});

/// Generates the leaf images into dir/{train,validation,test}/{healthy,angular_spots,rust}/*.png: three kinds of marks
/// on leaves of varied shape, pose, hue and background. Same arguments, same bytes. 70/15/15 split, classes balanced.
void write_leaves(const std::string& dir, std::int64_t images, std::int64_t size, std::uint64_t seed);

}  // namespace trireme::data
