// Dataset: samples by index. Thread-safe: the loader's workers call get() concurrently.
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
  /// Augmentation depends only on (seed, epoch, index); there is none unless `augment` is true.
  /// @throws DataError that names the file; with on_bad_sample = skip, returns nullopt instead.
  virtual std::optional<Sample> get(std::int64_t index, std::int64_t epoch, bool augment) = 0;
  /// A sample's label. The default implementation reads the whole sample.
  [[nodiscard]] virtual std::int64_t label(std::int64_t index);
  /// The indices of the samples that get() has found unreadable so far.
  [[nodiscard]] virtual std::vector<std::int64_t> skipped() const { return {}; }
  /// The inputs of an empty batch: {[0, 3, H, W]}. By default they have the shape of the first readable sample.
  [[nodiscard]] virtual std::vector<at::Tensor> empty_inputs();
};

/// Facts about a data source that hold for all of its splits.
struct DatasetInfo {
  std::vector<std::string> classes;  ///< indexed by label
  std::int64_t image_size = 0;       ///< pixels per side
  bool normalised = true;            ///< false: the data are used without mean and std
  /// Digest of the names and labels of the training images, in order; "" if the configuration determines the samples.
  std::string digest{};
};
/// The three splits; a split that does not exist is null (only test may be missing).
struct Datasets {
  DatasetInfo info;
  std::shared_ptr<Dataset> train, validation, test;
};

/// Opens the source that options.name selects and checks it (splits, classes, no empty class) before training starts.
/// One rank per host of `launch` lists a folder for all ranks of that host, so every rank must call this.
/// @throws DataError
Datasets open(const config::DataOptions& options, std::uint64_t seed, const Log& log,
              const comm::LaunchInfo& launch = {});

/// Generates the leaf images in dir/{train,validation,test}/{healthy,angular_spots,rust}/*.png: three kinds of marks on
/// leaves of varied shape, pose, hue and background. The same arguments give the same bytes. 70/15/15 split, balanced
/// classes.
void write_leaves(const std::string& dir, std::int64_t images, std::int64_t size, std::uint64_t seed);

}  // namespace trireme::data
