// Image folder: path/{train,validation,test}/<class>/*.{jpg,jpeg,png}. `val` is accepted for validation, and the case
// of extensions is ignored. Classes are the folder names of train in byte order (label 0, 1, ...). Files are in byte
// order of their names, so a sample's index is the same on every machine. Hidden names are ignored
// (folder_entries.h).
#pragma once

#include <memory>
#include <string>

#include "core/data/datasets.h"
#include "datasets/folder_index.h"
#include "datasets/pixel_source.h"

namespace trireme::datasets {

/// Lists and checks the folder without opening an image. Without `skip_bad`, image files that are empty or no regular
/// files are errors, too.
/// @throws DataError when the folder does not exist, or a split or class is missing, empty or unknown to train.
std::shared_ptr<const FolderIndex> list_image_folder(const std::string& path, bool skip_bad = true);

/// Whether the name ends in .jpg, .jpeg or .png.
bool has_image_extension(const std::string& name);

/// The images of one split of the folder `path`.
std::shared_ptr<PixelSource> folder_source(std::shared_ptr<const FolderIndex> index, data::Split split,
                                           const std::string& path);

}  // namespace trireme::datasets
