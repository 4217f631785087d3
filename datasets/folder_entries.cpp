#include "datasets/folder_entries.h"

#include <fmt/format.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "core/base/error.h"
#include "core/base/text.h"

namespace trireme::datasets {
namespace fs = std::filesystem;

bool is_hidden(std::string_view path) {
  for (std::size_t begin = 0; begin < path.size();) {
    const auto end = std::min(path.find('/', begin), path.size());
    const auto part = path.substr(begin, end - begin);
    if (part.starts_with('.') && part != "." && part != "..") return true;
    begin = end + 1;
  }
  return false;
}

namespace {

std::vector<std::string> files_below(const std::string& folder,
                                     const std::function<bool(const std::string& name)>& is_wanted,
                                     const std::string& wanted) {
  std::vector<std::string> files;
  std::error_code error;
  fs::recursive_directory_iterator it(folder, fs::directory_options::follow_directory_symlink, error);
  for (const fs::recursive_directory_iterator end; !error && it != end; it.increment(error)) {
    const auto name = it->path().filename().string();
    std::error_code none;
    const bool is_folder = it->is_directory(none);
    if (is_hidden(name)) {
      if (is_folder) it.disable_recursion_pending();
    } else if (!is_folder && is_wanted(name)) {
      files.push_back(it->path().string());
    }
  }
  if (error) throw DataError(fmt::format("{}: cannot be read: {}", folder, error.message()));
  if (files.empty()) throw DataError(fmt::format("{}: no {} in this folder", folder, wanted));
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

std::vector<FolderEntry> folder_entries(const fs::path& folder) {
  std::error_code error, unknown;
  std::vector<FolderEntry> found;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    auto name = it->path().filename().string();
    const bool regular = !it->is_symlink(unknown) && it->is_regular_file(unknown);
    if (!is_hidden(name)) found.push_back({std::move(name), regular});
  }
  if (error) throw DataError(fmt::format("{}: cannot be read: {}", folder.string(), error.message()));
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  return found;
}

std::vector<std::string> named_files(const std::vector<std::string>& paths,
                                     const std::function<bool(const std::string& name)>& is_wanted,
                                     const std::string& wanted) {
  std::vector<std::string> files;
  for (const auto& path : paths) {
    std::error_code none;
    const auto named =
        fs::is_directory(path, none) ? files_below(path, is_wanted, wanted) : std::vector<std::string>{path};
    files.insert(files.end(), named.begin(), named.end());
  }
  return files;
}

const std::vector<std::string>& split_names(data::Split split) {
  static const std::vector<std::string> train{"train"}, validation{"validation", "valid", "val", "dev"}, test{"test"};
  return split == data::Split::train ? train : split == data::Split::validation ? validation : test;
}

std::optional<std::string> find_split(const std::string& folder, data::Split split,
                                      const std::vector<std::string>& endings, const std::string& remedy,
                                      std::optional<fs::file_type> only) {
  std::vector<std::string> found;
  for (const auto& name : split_names(split))
    for (const auto& ending : endings) {
      std::error_code error;
      const auto status = fs::status(fs::path(folder) / (name + ending), error);
      if (only ? status.type() == *only : fs::exists(status)) found.push_back(name + ending);
    }
  if (found.size() > 1)
    throw DataError(
        fmt::format("{}: has {}, which mean the same split; {}", folder, text::join(found, " and "), remedy));
  return found.empty() ? std::nullopt : std::optional((fs::path(folder) / found.front()).string());
}

}  // namespace trireme::datasets
