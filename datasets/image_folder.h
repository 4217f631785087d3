// Image folder: path/{train,validation,test}/<class>/*.{jpg,jpeg,png}. `val` is accepted for validation, and the case
// of extensions is ignored. Classes are the folder names of train in byte order (label 0, 1, ...). Files are in byte
// order of their names, so a sample's index is the same on every machine. Names that begin with a dot are ignored.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/base/log.h"
#include "core/data/datasets.h"
#include "datasets/pixel_source.h"

namespace trireme::datasets {

/// The files of one split, in order.
struct FolderSplit {
  std::vector<std::string> files;
  std::vector<std::int64_t> labels;
};

struct FolderListing {
  std::vector<std::string> classes;
  std::map<data::Split, FolderSplit> splits;  ///< train and validation always; test if it exists
};

/// Lists and checks the folder without opening an image. Without `skip_bad`, image files that are empty or no regular
/// files are errors, too.
/// @throws DataError when the folder does not exist, or a split or class is missing, empty or unknown to train.
FolderListing list_image_folder(const std::string& path, const Log& log, bool skip_bad = true);

/// Converts a listing to bytes and back, to send it to the other ranks of a host.
std::string text_of(const FolderListing& listing);
FolderListing parse_listing(const std::string& text);

std::shared_ptr<PixelSource> folder_source(FolderSplit split);

}  // namespace trireme::datasets
