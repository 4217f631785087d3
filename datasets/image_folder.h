// Image folder: path/{train,validation,test}/<class>/*.{jpg,png,...}, with the endings of image.h. Classes are the
// folder names of train in byte order (label 0, 1, ...). Files are in byte order of their names, so a sample's index is
// the same on every machine. folder_entries.h says which names are ignored, and which ones a split may have.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "core/base/log.h"
#include "core/comm/world.h"
#include "core/data/datasets.h"
#include "datasets/folder_index.h"
#include "datasets/pixel_source.h"

namespace trireme::datasets {

/// Lists and checks the folder without opening an image. Without `skip_bad`, image files that are empty or no regular
/// files are errors, too.
/// @throws DataError when the folder does not exist, the train split is missing, or a class is missing, empty or
/// unknown to train.
std::shared_ptr<const FolderIndex> list_image_folder(const std::string& path, bool skip_bad = true);

/// Smaller folders are listed each time, which takes milliseconds, and leave nothing in the cache.
inline constexpr std::int64_t kCachedFolderFiles = 2000;

enum class IndexOrigin { listed, cached, received };
struct OpenedIndex {
  std::shared_ptr<const FolderIndex> index;
  IndexOrigin origin = IndexOrigin::received;
};

/// The index of a folder: from the user's cache (index_cache.h) if the folder has not changed since, else by listing
/// it. One rank of each host does this, and the others receive the index from it. The folder is unchanged if the root,
/// the splits and the classes have the modification times and inodes of the index: one stat() a folder. They show files
/// that were added, removed or renamed, but not a file that was overwritten. A cache that cannot be read is the same as
/// none; if it cannot be written, `log` gets a note.
/// @throws DataError as list_image_folder()
OpenedIndex open_folder_index(const std::string& path, bool skip_bad, const Log& log, const LaunchInfo& launch = {});

/// The images of one split of the folder `path`.
std::shared_ptr<PixelSource> folder_source(std::shared_ptr<const FolderIndex> index, data::Split split,
                                           const std::string& path, const Decoding& decoding = {});

}  // namespace trireme::datasets
