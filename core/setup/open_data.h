// The data of a run: the splits of its data set, or a prediction's files, with classes that are numbered as the weights
// number them.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/comm/world.h"
#include "core/data/datasets.h"
#include "core/nn/model_kind.h"
#include "core/setup/loaded_weights.h"

namespace trireme::train {

/// Makes a batch of samples, as data::Dataset::collate() does.
using DataCollator = std::function<data::Sample(std::vector<data::Sample>, const std::vector<std::int64_t>& indices)>;
/// The data set, whose batches `collator` makes. A null data set stays null, and without a collator it makes its own.
std::shared_ptr<data::Dataset> collated(std::shared_ptr<data::Dataset> data, const DataCollator& collator);

/// Opens the splits of [data]. Their classes are numbered as the weights number classes of the same names, which is
/// logged; data whose classes are numbers gets the weights' names. In an evaluation the data may lack some of the
/// weights' classes, but other names are an error, because the model does not know those classes; in training they are
/// logged if the head is kept. @throws ConfigError, DataError, CheckpointError
data::Datasets open_data(RunConfig& config, const LoadedWeights& weights, const std::string& head_prefix,
                         const LaunchInfo& launch, const Log& log, bool trains);

/// A prediction's files and folders (data::open_files()), as training and validation split; a file that cannot be read
/// is skipped. The samples have no targets; the classes, or what else the model has outputs for, are named by the
/// weights, or for numbers by the data set's options.
struct OpenedFiles {
  data::Datasets data;
  data::FileSamples samples;
};
/// @throws ConfigError, DataError; CheckpointError when nothing names the classes
OpenedFiles open_files(RunConfig& config, const LoadedWeights& weights, const std::string& head_prefix,
                       const LaunchInfo& launch, const Log& log, const std::vector<std::string>& inputs);

/// `data`, numbered as open_data() says. `path`: of the weights. @throws ConfigError
data::Datasets numbered_as(const std::vector<std::string>& labels, data::Datasets data, const std::string& path,
                           bool trains, const Log& log);

}  // namespace trireme::train
