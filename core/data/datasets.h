// Datasets: what a kind of data set opens: the splits, and what is true of all of them. [data] name = "..." selects a
// kind by its name; those that come with Trireme are in datasets/.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

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
  bool shard_data = false;                 ///< of each split, this rank reads only samples i with i mod size = rank
  std::string weights{};                   ///< the weights that the model starts from, or ""
  const config::Table* section = nullptr;  ///< [data] as written, for errors that point at a key; may be null
  LaunchInfo launch{};                     ///< every rank opens the data; comm::share_on_host() spares repeated work
  Log log{0};
};
/// The samples of single files outside all splits, without labels, in the format of the data set: a prediction's
/// inputs. Only a kind of data set knows how its samples are read and prepared, so it opens them, although the data set
/// itself may be gone.
struct FileSamples {
  std::vector<std::string> columns;             ///< what a sample is shown by: {"image"}, or {"text", "text_pair"}
  std::vector<std::vector<std::string>> shown;  ///< its value in each column, by the samples' index
  std::shared_ptr<Dataset> data;                ///< prepared as the samples of an evaluation
  std::vector<std::string> numbers{};           ///< names of the numbers that the options say to predict, if they do
};
/// Opens the splits and checks them, before training starts. Options that the user left open may be filled in.
/// @throws ConfigError, DataError
class DatasetFactory : public Factory<Datasets(const OpenContext& context)> {
 public:
  using Factory::Factory;
  /// A kind whose samples can also come from single files. `files` takes (Options&, const OpenContext&, const
  /// std::vector<std::string>& paths); see data::open_files().
  template <class Options, class Make, class OpenFiles>
  DatasetFactory(const Fields<Options>& fields, Options options, Make make, OpenFiles files)
      : Factory(fields, std::move(options), std::move(make)),
        open_files_(
            [files = std::move(files)](void* own, const OpenContext& context, const std::vector<std::string>& paths) {
              return files(*static_cast<Options*>(own), context, paths);
            }) {}
  [[nodiscard]] bool opens_files() const { return open_files_ != nullptr; }
  /// @pre opens_files()
  FileSamples open_files(const OpenContext& context, const std::vector<std::string>& paths) {
    return open_files_(options(), context, paths);
  }

 private:
  std::function<FileSamples(void*, const OpenContext&, const std::vector<std::string>&)> open_files_;
};
/// Checks the options, which a program may have filled in, by the rules of a file, then opens the data set.
/// @throws ConfigError, DataError
Datasets open(DatasetFactory& source, const OpenContext& context);
/// The same for single files. `paths`: of files, or of folders whose files are meant.
/// @throws ConfigError when this kind of data set has no single files; DataError
FileSamples open_files(DatasetFactory& source, const OpenContext& context, const std::vector<std::string>& paths);

}  // namespace trireme::data
