// Images that a user names one by one or by their folders, for a prediction: they belong to no split and have no label.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "datasets/datasets.h"

namespace trireme::datasets {

/// `paths`: files, whatever their names, in this order; a folder stands for the images below it, in byte order of their
/// paths, without hidden ones (folder_entries.h). A file that cannot be read is an unreadable sample.
/// They are prepared as the images of a validation split are; `usual` and `default_size` are those of the data set.
/// @throws DataError for a folder that cannot be read or has no image; ConfigError, CheckpointError as
/// fill_normalisation()
data::FileSamples open_image_files(ImageOptions& options, const Normalisation& usual, std::int64_t default_size,
                                   const data::OpenContext& context, const std::vector<std::string>& paths);

}  // namespace trireme::datasets
