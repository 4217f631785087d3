// Datasets: what a kind of data set opens: the splits, and what is true of all of them. [data] name = "..." selects a
// kind by its name; those that come with Trireme are in datasets/.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "core/base/factory.h"
#include "core/base/log.h"
#include "core/comm/world.h"
#include "core/config/table.h"
#include "core/data/dataset.h"

namespace trireme::data {

enum class Split { train, validation, test };
inline constexpr Split kSplits[] = {Split::train, Split::validation, Split::test};
const char* name_of(Split split);

/// Facts about a data source that hold for all of its splits.
struct DatasetInfo {
  nn::DataSpec spec{};   ///< of the training split; classes: of all splits
  std::string source{};  ///< for the header of a run and for errors: a path, or the name of the kind
  std::string about{};   ///< one more fact for the header, "48 px"; "": the inputs' shapes
  /// Digest of the names and labels of the training samples, in order; "" if the configuration determines the samples.
  std::string digest{};
  /// Files that belong beside exported weights, by name: how the inputs were prepared ("preprocessor_config.json").
  std::map<std::string, std::string> files{};
};
/// The three splits; a split that does not exist is null (only test may be missing).
struct Datasets {
  DatasetInfo info;
  std::shared_ptr<Dataset> train, validation, test;

  [[nodiscard]] std::shared_ptr<Dataset>& of(Split split) {
    return split == Split::train ? train : split == Split::validation ? validation : test;
  }
};

/// What a kind of data set gets besides its own options.
struct OpenContext {
  std::uint64_t seed = 42;                 ///< of the run, for augmentation
  bool skip_bad_samples = false;           ///< data.on_bad_sample = "skip": see bad_samples.h
  std::string weights{};                   ///< the weights that the model starts from, or ""
  const config::Table* section = nullptr;  ///< [data] as written, for errors that point at a key; may be null
  comm::LaunchInfo launch{};               ///< every rank opens the data; comm::share_on_host() spares repeated work
  Log log{0};
};
/// Opens the splits and checks them, before training starts. Options that the user left open may be filled in.
/// @throws ConfigError, DataError
using DatasetFactory = Factory<Datasets(const OpenContext& context)>;
/// Checks the options, which a program may have filled in, by the rules of a file, then opens the data set.
/// @throws ConfigError, DataError
Datasets open(DatasetFactory& source, const OpenContext& context);

}  // namespace trireme::data
