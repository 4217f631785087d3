#include "datasets/image_folder.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "core/base/error.h"
#include "core/base/text.h"
#include "datasets/image.h"

namespace trireme::datasets {
namespace {

namespace fs = std::filesystem;

/// The names in a folder, sorted by bytes.
std::vector<std::string> entries(const fs::path& folder) {
  std::error_code error;
  std::vector<std::string> names;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    auto name = it->path().filename().string();
    if (name.front() != '.') names.push_back(std::move(name));
  }
  if (error) throw DataError(fmt::format("{}: cannot be read: {}", folder.string(), error.message()));
  std::sort(names.begin(), names.end());
  return names;
}

bool is_folder(const fs::path& path) {
  std::error_code error;
  return fs::is_directory(path, error);
}

bool is_image(const std::string& name) {
  auto extension = fs::path(name).extension().string();
  std::transform(extension.begin(), extension.end(), extension.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return extension == ".jpg" || extension == ".jpeg" || extension == ".png";
}

/// A class name is written to config.json and to the screen, so it must be text; a file name may contain any bytes.
std::vector<std::string> class_folders(const fs::path& split) {
  auto names = entries(split);
  for (const auto& name : names)
    if (is_image(name) && !is_folder(split / name))
      throw DataError(fmt::format("{}: this image is in no class folder; move it into one, or remove it",
                                  (split / text::printable(name)).string()));
  std::erase_if(names, [&](const std::string& name) { return !is_folder(split / name); });
  for (const auto& name : names)
    if (const auto shown = text::printable(name); shown != name)
      throw DataError(fmt::format("{}: this class folder's name is not UTF-8; rename it", (split / shown).string()));
  return names;
}

/// The problem of an image file that shows without opening it, or null. @throws DataError for a folder
const char* problem_of(const fs::path& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0)
    return errno == ENOENT ? "a link to a file that does not exist" : std::strerror(errno);
  if (S_ISDIR(status.st_mode))
    throw DataError(fmt::format("{}: a folder in a class folder; move its images into {}, or remove it",
                                (path.parent_path() / text::printable(path.filename().string())).string(),
                                path.parent_path().string()));
  return !S_ISREG(status.st_mode) ? "not a regular file" : status.st_size == 0 ? "the file is empty" : nullptr;
}

FolderSplit list_split(const fs::path& folder, const fs::path& train, const std::vector<std::string>& classes,
                       std::int64_t* passed_over, bool skip_bad) {
  FolderSplit out;
  for (const auto& name : class_folders(folder)) {
    const auto found = std::find(classes.begin(), classes.end(), name);
    if (found == classes.end())
      throw DataError(fmt::format(
          "{}: class \"{}\" is not in {} (classes: {}); a class must be in train to be learned{}",
          (folder / name).string(), name, train.string(), text::join(classes), text::did_you_mean(name, classes)));
    const auto before = out.files.size();
    for (const auto& file : entries(folder / name)) {
      const auto* problem = problem_of(folder / name / file);
      if (!is_image(file)) {
        ++*passed_over;
        continue;
      }
      if (problem != nullptr && !skip_bad)
        throw DataError(fmt::format("{}: {}; remove it, or set data.on_bad_sample = \"skip\" to continue without it",
                                    (folder / name / text::printable(file)).string(), problem));
      out.files.push_back((folder / name / file).string());
      out.labels.push_back(found - classes.begin());
    }
    if (out.files.size() == before)
      throw DataError(
          fmt::format("{}: no image (.jpg, .jpeg, .png) in this class folder; add some or remove the folder",
                      (folder / name).string()));
  }
  if (out.files.empty())
    throw DataError(fmt::format("{}: no class folder in this split; expected {}", folder.string(),
                                (folder / "<class>" / "*.jpg").string()));
  return out;
}

class FolderSource : public PixelSource {
 public:
  explicit FolderSource(FolderSplit split) : split_(std::move(split)) {}
  [[nodiscard]] std::int64_t size() const override { return static_cast<std::int64_t>(split_.files.size()); }
  [[nodiscard]] std::int64_t label(std::int64_t index) const override {
    return split_.labels[static_cast<std::size_t>(index)];
  }
  [[nodiscard]] at::Tensor load(std::int64_t index) const override {
    const auto& file = split_.files[static_cast<std::size_t>(index)];
    return decode_image(read_bytes(file), file);
  }

 private:
  FolderSplit split_;
};

}  // namespace

FolderListing list_image_folder(const std::string& path, const Log& log, bool skip_bad) {
  if (path.empty())
    throw DataError("data.path is empty: set it to a folder with train/<class>/*.jpg and validation/<class>/*.jpg");
  const fs::path root(path);
  if (!is_folder(root)) {
    std::error_code error;
    const bool there = fs::exists(fs::symlink_status(root, error));
    const auto why = error && error != std::errc::no_such_file_or_directory ? error.message()
                     : there                                                ? "not a folder"
                                                                            : "no such folder";
    const auto from = root.is_relative()
                          ? fmt::format(" (data.path is relative to {})", fs::current_path(error).string())
                          : std::string();
    throw DataError(
        fmt::format("{}: {}{}; set data.path to a folder with train/ and validation/ in it", path, why, from));
  }
  const bool has_val = is_folder(root / "val"), has_validation = is_folder(root / "validation");
  if (has_val && has_validation)
    throw DataError(fmt::format("{}: has both val and validation, which mean the same split; remove one", path));
  const std::map<data::Split, fs::path> folders{{data::Split::train, root / "train"},
                                                {data::Split::validation, root / (has_val ? "val" : "validation")},
                                                {data::Split::test, root / "test"}};
  const auto& train = folders.at(data::Split::train);
  if (!is_folder(train) && (root.filename() == "train" || root.filename() == "validation"))
    throw DataError(fmt::format("{}: this is one split; set data.path to the folder that contains it: {}", path,
                                root.has_parent_path() ? root.parent_path().string() : ".."));
  for (const auto split : {data::Split::train, data::Split::validation})
    if (!is_folder(folders.at(split)))
      throw DataError(fmt::format("{}: the {} split is missing; create it, with one subfolder of images per class",
                                  folders.at(split).string(), data::name_of(split)));
  if (std::error_code error;
      fs::exists(folders.at(data::Split::test), error) && !is_folder(folders.at(data::Split::test)))
    throw DataError(
        fmt::format("{}: not a folder; expected the test split, or nothing", folders.at(data::Split::test).string()));
  FolderListing out;
  out.classes = class_folders(train);
  std::int64_t passed_over = 0;
  for (const auto& [split, folder] : folders)
    if (is_folder(folder)) out.splits[split] = list_split(folder, train, out.classes, &passed_over, skip_bad);
  if (passed_over > 0)
    log.note("data: {} under {} {} not .jpg, .jpeg or .png and {} ignored", text::quantity(passed_over, "file"), path,
             passed_over == 1 ? "is" : "are", passed_over == 1 ? "was" : "were");
  for (const auto& [split, files] : out.splits)
    for (std::size_t c = 0; c < out.classes.size(); ++c)
      if (std::find(files.labels.begin(), files.labels.end(), static_cast<std::int64_t>(c)) == files.labels.end())
        log.note("data: the {} split has no image of class \"{}\"", data::name_of(split), out.classes[c]);
  return out;
}

// Each item ends with a zero byte, which no file name contains: the number of classes, the classes, and for each split
// its number, the number of files, and each file's label and name.
std::string text_of(const FolderListing& listing) {
  std::string out;
  const auto put = [&out](const std::string& item) { out.append(item).push_back('\0'); };
  put(std::to_string(listing.classes.size()));
  for (const auto& name : listing.classes) put(name);
  for (const auto& [split, files] : listing.splits) {
    put(std::to_string(static_cast<int>(split)));
    put(std::to_string(files.files.size()));
    for (std::size_t i = 0; i < files.files.size(); ++i) {
      put(std::to_string(files.labels[i]));
      put(files.files[i]);
    }
  }
  return out;
}

FolderListing parse_listing(const std::string& text) {
  std::size_t at = 0;
  const auto next = [&] {
    const auto end = text.find('\0', at);
    TRIREME_CHECK(end != std::string::npos, "the listing of the image folder is truncated");
    auto item = text.substr(at, end - at);
    at = end + 1;
    return item;
  };
  FolderListing out;
  for (auto classes = std::stoll(next()); classes > 0; --classes) out.classes.push_back(next());
  while (at < text.size()) {
    auto& split = out.splits[static_cast<data::Split>(std::stoi(next()))];
    for (auto files = std::stoll(next()); files > 0; --files) {
      split.labels.push_back(std::stoll(next()));
      split.files.push_back(next());
    }
  }
  return out;
}

std::shared_ptr<PixelSource> folder_source(FolderSplit split) {
  return std::make_shared<FolderSource>(std::move(split));
}

}  // namespace trireme::datasets
