// Opens the index of an image folder: from the user's cache (index_cache.h) if the folder has not changed since, else
// by listing it. One rank of each host does this, and the others receive the index from it.
//
// The folder is unchanged if the root, the splits and the classes have the modification times and inodes of the index:
// one stat() a folder. They show files that were added, removed or renamed, but not a file that was overwritten.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "core/base/log.h"
#include "core/comm/world.h"
#include "datasets/folder_index.h"

namespace trireme::datasets {

/// Smaller folders are listed each time, which takes milliseconds, and leave nothing in the cache.
inline constexpr std::int64_t kCachedFolderFiles = 2000;

enum class IndexOrigin { listed, cached, received };
struct OpenedIndex {
  std::shared_ptr<const FolderIndex> index;
  IndexOrigin origin = IndexOrigin::received;
};

/// A cache that cannot be read is the same as none; if it cannot be written, `log` gets a note.
/// @throws DataError as list_image_folder() (image_folder.h)
OpenedIndex open_folder_index(const std::string& path, bool skip_bad, const Log& log, const LaunchInfo& launch = {});

}  // namespace trireme::datasets
