#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/vfs.h>

#include <chrono>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/base/random.h"
#include "core/base/text.h"
#include "core/comm/host_share.h"
#include "datasets/image_folder.h"
#include "datasets/index_cache.h"

namespace trireme::datasets {
namespace {

namespace fs = std::filesystem;
using std::chrono::system_clock;

std::string cached_name(const std::string& path) {
  std::error_code error;
  auto folder = fs::absolute(path, error).lexically_normal();
  if (!folder.has_filename()) folder = folder.parent_path();  // a trailing slash
  return fmt::format("folder-{:016x}", random::hash(folder.string()));
}

/// The index in the cache, or null if there is none of the folder as it is now.
std::shared_ptr<const FolderIndex> read_cached(const std::string& path, bool skip_bad) {
  auto bytes = read_index(cached_name(path));
  auto index = bytes ? FolderIndex::parse(*std::move(bytes)) : nullptr;
  if (!index || !(index->files_checked() || skip_bad)) return nullptr;
  for (std::size_t i = 0; i < index->rows().size(); ++i)
    if (stamp_of((fs::path(path) / index->folders()[i]).string()) != index->rows()[i].stamp) return nullptr;
  return index;
}

/// Whether a later change of any of the folders will show in its stamp. It may not when the folder was changed just
/// before it was listed (at `listed`), or when its times are invented by a program, as for object stores (FUSE).
bool has_reliable_stamps(const FolderIndex& index, const std::string& path, system_clock::time_point listed) {
  const auto latest = std::chrono::nanoseconds((listed - kStampGranularity).time_since_epoch()).count();
  for (std::size_t i = 0; i < index.rows().size(); ++i) {
    const auto modified = index.rows()[i].stamp.modified_ns;
    struct statfs system {};
    if (modified <= 0 || modified > latest || ::statfs((fs::path(path) / index.folders()[i]).c_str(), &system) != 0 ||
        system.f_type == FUSE_SUPER_MAGIC)
      return false;
  }
  return true;
}

void note_contents(const FolderIndex& index, const std::string& path, const Log& log) {
  if (const auto ignored = index.ignored_files(); ignored > 0)
    log.note("data: {} under {} {} no image by {} name ({}) and {} ignored", text::quantity(ignored, "file"), path,
             ignored == 1 ? "is" : "are", ignored == 1 ? "its" : "their", image_endings(),
             ignored == 1 ? "was" : "were");
  const auto classes = index.classes();
  for (const auto split : data::kSplits) {
    if (index.size(split) == 0) continue;
    std::vector<bool> found(classes.size());
    for (const auto& row : index.rows())
      if (row.split == static_cast<std::int32_t>(split) && row.label >= 0)
        found[static_cast<std::size_t>(row.label)] = true;
    for (std::size_t c = 0; c < classes.size(); ++c)
      if (!found[c]) log.note("data: the {} split has no image of class \"{}\"", data::name_of(split), classes[c]);
  }
}

OpenedIndex read_or_list(const std::string& path, bool skip_bad, const Log& log) {
  OpenedIndex out{read_cached(path, skip_bad), IndexOrigin::cached};
  if (!out.index) {
    const auto now = system_clock::now();
    out = {list_image_folder(path, skip_bad), IndexOrigin::listed};
    std::int64_t files = 0;
    for (const auto split : data::kSplits) files += out.index->size(split);
    if (files >= kCachedFolderFiles && has_reliable_stamps(*out.index, path, now) &&
        !write_index(cached_name(path), out.index->bytes()))
      log.note("data: the list of files of {} cannot be written to the user's cache folder; each run lists them again",
               path);
  }
  note_contents(*out.index, path, log);
  return out;
}

}  // namespace

OpenedIndex open_folder_index(const std::string& path, bool skip_bad, const Log& log, const LaunchInfo& launch) {
  OpenedIndex out;
  auto bytes = comm::share_on_host(launch, "list " + path, [&] {
    out = read_or_list(path, skip_bad, log);
    return out.index->bytes();
  });
  if (!out.index) out.index = FolderIndex::parse(std::move(bytes));
  TRIREME_CHECK(out.index, "the index of {} that another rank sent is damaged", path);
  return out;
}

}  // namespace trireme::datasets
