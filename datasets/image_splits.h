// The splits of a data set of images, made of their sources: each with the transform of its split.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "datasets/datasets.h"
#include "datasets/pixel_source.h"

namespace trireme::datasets {

/// `default_size`: pixels per side when options.image_size is unset; `cache_mb`: memory for decoded images; unset: by
/// default 512 MiB, and no limit with context.shard_data.
/// @pre mean and std are set
data::Datasets image_splits(const std::map<data::Split, std::shared_ptr<PixelSource>>& sources,
                            std::vector<std::string> classes, const ImageOptions& options, std::int64_t default_size,
                            std::optional<double> cache_mb, const data::OpenContext& context);

}  // namespace trireme::datasets
