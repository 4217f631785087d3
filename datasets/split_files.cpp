#include "datasets/split_files.h"

#include <filesystem>

#include "core/base/error.h"
#include "datasets/folder_entries.h"

namespace trireme::datasets {
const std::string& source_of(const SplitOptions& options) {
  return options.path.empty() ? options.train : options.path;
}

std::map<data::Split, std::string> split_files(const SplitOptions& options, const std::vector<std::string>& endings) {
  namespace fs = std::filesystem;
  std::map<data::Split, std::string> out;
  if (options.path.empty()) {
    out = {{data::Split::train, options.train},
           {data::Split::validation, options.validation},
           {data::Split::test, options.test}};
    std::erase_if(out, [](const auto& split) { return split.second.empty(); });
    return out;
  }
  std::error_code error;
  if (!fs::is_directory(options.path, error))
    throw DataError(fmt::format("{}: {}; data.path names a folder, data.train a file", options.path,
                                fs::exists(options.path, error) ? "not a folder" : "no such folder"));
  for (const auto split : data::kSplits)
    if (auto found = find_split(options.path, split, endings,
                                "name the one to use with data.train, data.validation and data.test"))
      out[split] = *std::move(found);
  return out;
}

}  // namespace trireme::datasets
