#include "datasets/folder_entries.h"

#include <fmt/format.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "core/base/error.h"

namespace trireme::datasets {
namespace {

namespace fs = std::filesystem;

}  // namespace

bool is_hidden(std::string_view path) {
  for (std::size_t begin = 0; begin < path.size();) {
    const auto end = std::min(path.find('/', begin), path.size());
    const auto part = path.substr(begin, end - begin);
    if (part.starts_with('.') && part != "." && part != "..") return true;
    begin = end + 1;
  }
  return false;
}

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

}  // namespace trireme::datasets
