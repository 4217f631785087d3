// What counts as data in a folder or an archive: everything but what is hidden, which has a name that begins with a dot
// (".DS_Store", "._a.png", ".ipynb_checkpoints"). Every kind of data lists folders by this rule; what a user names in
// the configuration or on the command line is taken, whatever its name.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/data/datasets.h"

namespace trireme::datasets {

/// Whether a name is hidden, or one of the folders in which a relative path places it.
bool is_hidden(std::string_view path);

/// A name in a folder. `regular`: the folder itself says that it is a regular file, so that no stat() is needed.
struct FolderEntry {
  std::string name;
  bool regular;
};

/// What a folder holds, in byte order of the names. @throws DataError when it cannot be read
std::vector<FolderEntry> folder_entries(const std::filesystem::path& folder);

/// The files that a user names, in order. A folder among `paths` stands for the files below it whose names are wanted,
/// in byte order of their paths. Links to folders are followed, as in a data set. `wanted`: "image (.jpg)", for errors.
/// @throws DataError for a folder that cannot be read or has no such file
std::vector<std::string> named_files(const std::vector<std::string>& paths,
                                     const std::function<bool(const std::string& name)>& is_wanted,
                                     const std::string& wanted);

/// The names that every kind of data takes for a split: "validation", "valid", "val" and "dev" mean the same.
const std::vector<std::string>& split_names(data::Split split);
/// What a folder holds for a split: one of its names followed by one of the endings, which may be nothing; nullopt:
/// nothing. @throws DataError with the remedy when there are two
std::optional<std::string> find_split(const std::string& folder, data::Split split,
                                      const std::vector<std::string>& endings, const std::string& remedy,
                                      std::optional<std::filesystem::file_type> only = std::nullopt);

}  // namespace trireme::datasets
