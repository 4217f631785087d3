// Image folder: path/{train,validation,test}/<class>/*.{jpg,jpeg,png}; `val` stands for validation, case is ignored in
// extensions. Classes are the folder names of train in byte order (label 0, 1, ...); files come in byte order of their
// names, so that a sample's number is the same on every machine. Names that begin with a dot are passed over.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/base/log.h"
#include "core/data/dataset.h"
#include "core/data/pixel_source.h"

namespace trireme::data {

/// The files of one split, in order.
struct FolderSplit {
  std::vector<std::string> files;
  std::vector<std::int64_t> labels;
};

struct FolderListing {
  std::vector<std::string> classes;
  std::map<Split, FolderSplit> splits;  ///< train and validation always; test when it is there
};

/// Lists and checks the folder; opens no image.
/// @throws DataError: no such folder, a split or class that is missing, empty or unknown to train.
FolderListing list_image_folder(const std::string& path, const Log& log);

/// A listing as bytes, and back: for the other ranks of a host.
std::string text_of(const FolderListing& listing);
FolderListing parse_listing(const std::string& text);

std::shared_ptr<PixelSource> folder_source(FolderSplit split);

}  // namespace trireme::data
