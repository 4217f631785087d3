// The data sets that [data] name = "..." can select.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "core/base/log.h"
#include "core/comm/world.h"
#include "core/config/run_config.h"
#include "core/data/dataset.h"

namespace trireme::data {

enum class Split { train, validation, test };
const char* name_of(Split split);

/// Facts about a data source that hold for all of its splits.
struct DatasetInfo {
  nn::DataSpec spec{};     ///< of the training split; classes: of all splits
  bool normalised = true;  ///< false: the data are used without mean and std
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

}  // namespace trireme::data
