#include "datasets/image_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/base/text.h"
#include "datasets/folder_entries.h"
#include "datasets/image.h"

namespace trireme::datasets {
namespace {

namespace fs = std::filesystem;

bool is_folder(const fs::path& path) {
  std::error_code error;
  return fs::is_directory(path, error);
}

/// A class name is written to config.json and to the screen, so it must be text; a file name may contain any bytes.
std::vector<std::string> class_folders(const fs::path& split) {
  std::vector<std::string> names;
  for (auto& entry : folder_entries(split)) names.push_back(std::move(entry.name));
  for (const auto& name : names)
    if (has_image_ending(name) && !is_folder(split / name))
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
  const auto* problem = file_problem(path.string());
  if (problem != nullptr && std::string_view(problem) == kIsFolder)
    throw DataError(fmt::format("{}: a folder in a class folder; move its images into {}, or remove it",
                                (path.parent_path() / text::printable(path.filename().string())).string(),
                                path.parent_path().string()));
  return problem;
}

void list_class(FolderIndexBuilder& out, const fs::path& folder, bool skip_bad) {
  for (const auto& entry : folder_entries(folder)) {
    const bool image = has_image_ending(entry.name);
    // Only an image's size is of interest, and only without skip_bad.
    const auto* problem = entry.regular && (skip_bad || !image) ? nullptr : problem_of(folder / entry.name);
    if (!image) {
      out.ignore_file();
      continue;
    }
    if (problem != nullptr && !skip_bad)
      throw DataError(fmt::format("{}: {}; remove it, or set data.on_bad_sample = \"skip\" to continue without it",
                                  (folder / text::printable(entry.name)).string(), problem));
    out.add_file(entry.name);
  }
  if (out.files() == 0)
    throw DataError(fmt::format("{}: no image ({}) in this class folder; add some or remove the folder",
                                folder.string(), image_endings()));
}

/// @param classes those of train, sorted
void list_split(FolderIndexBuilder& out, data::Split split, const fs::path& folder, const fs::path& train,
                const std::vector<std::string>& classes, bool skip_bad) {
  const auto below_root = folder.filename();
  // A folder's stamp is taken before it is read: a later change gives it another one.
  out.add_folder(below_root.string(), stamp_of(folder.string()), split);
  const auto names = class_folders(folder);
  for (const auto& name : names) {
    const auto found = std::lower_bound(classes.begin(), classes.end(), name);
    if (found == classes.end() || *found != name)
      throw DataError(fmt::format(
          "{}: class \"{}\" is not in {} (classes: {}); a class must be in train to be learned{}",
          (folder / name).string(), name, train.string(), text::join(classes), text::did_you_mean(name, classes)));
    out.add_folder((below_root / name).string(), stamp_of((folder / name).string()), split, found - classes.begin());
    list_class(out, folder / name, skip_bad);
  }
  if (names.empty())
    throw DataError(fmt::format("{}: no class folder in this split; expected {}", folder.string(),
                                (folder / "<class>" / "*.jpg").string()));
}

/// The folders of the splits that a root has. @throws DataError when they are not those of an image folder
std::map<data::Split, fs::path> split_folders(const std::string& path) {
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
  std::map<data::Split, fs::path> folders;
  for (const auto split : data::kSplits)
    folders[split] =
        find_split(path, split, {""}, "remove one", fs::file_type::directory).value_or(root / data::name_of(split));
  const auto is_split = [&](data::Split split) {
    const auto& names = split_names(split);
    return std::find(names.begin(), names.end(), root.filename()) != names.end();
  };
  if (!is_folder(folders.at(data::Split::train)) && (is_split(data::Split::train) || is_split(data::Split::validation)))
    throw DataError(fmt::format("{}: this is one split; set data.path to the folder that contains it: {}", path,
                                root.has_parent_path() ? root.parent_path().string() : ".."));
  if (const auto& train = folders.at(data::Split::train); !is_folder(train))
    throw DataError(fmt::format("{}: the train split is missing; create it, with one subfolder of images per class",
                                train.string()));
  if (std::error_code error;
      fs::exists(folders.at(data::Split::test), error) && !is_folder(folders.at(data::Split::test)))
    throw DataError(
        fmt::format("{}: not a folder; expected the test split, or nothing", folders.at(data::Split::test).string()));
  std::erase_if(folders, [](const auto& split) { return !is_folder(split.second); });
  return folders;
}

class FolderSource : public PixelSource {
 public:
  FolderSource(std::shared_ptr<const FolderIndex> index, data::Split split, const std::string& path,
               const Decoding& decoding)
      : index_(std::move(index)), split_(split), path_(path), decoding_(decoding) {}
  [[nodiscard]] std::int64_t size() const override { return index_->size(split_); }
  [[nodiscard]] std::int64_t label(std::int64_t index) const override { return index_->label(split_, index); }
  [[nodiscard]] DecodedImage load(std::int64_t index) const override {
    const auto file = (path_ / index_->file(split_, index)).string();
    return decode_file(file, decoding_);
  }

 private:
  std::shared_ptr<const FolderIndex> index_;  ///< of all splits
  data::Split split_;
  fs::path path_;
  Decoding decoding_;
};

class PartSource : public PixelSource {
 public:
  PartSource(std::shared_ptr<PixelSource> of, std::vector<std::int64_t> numbers)
      : of_(std::move(of)), numbers_(std::move(numbers)) {}
  [[nodiscard]] std::int64_t size() const override { return static_cast<std::int64_t>(numbers_.size()); }
  [[nodiscard]] std::int64_t label(std::int64_t index) const override { return of_->label(number(index)); }
  [[nodiscard]] nn::SampleTensor target_spec() const override { return of_->target_spec(); }
  [[nodiscard]] at::Tensor target(std::int64_t index) const override { return of_->target(number(index)); }
  [[nodiscard]] std::int64_t channels() const override { return of_->channels(); }
  [[nodiscard]] DecodedImage load(std::int64_t index) const override { return of_->load(number(index)); }

 private:
  [[nodiscard]] std::int64_t number(std::int64_t index) const { return numbers_.at(static_cast<std::size_t>(index)); }
  std::shared_ptr<PixelSource> of_;
  std::vector<std::int64_t> numbers_;
};

}  // namespace

std::shared_ptr<PixelSource> part_source(std::shared_ptr<PixelSource> of, std::vector<std::int64_t> numbers) {
  return std::make_shared<PartSource>(std::move(of), std::move(numbers));
}

std::shared_ptr<const FolderIndex> list_image_folder(const std::string& path, bool skip_bad) {
  FolderIndexBuilder out;
  out.add_folder("", stamp_of(path));
  const auto folders = split_folders(path);
  const auto& train = folders.at(data::Split::train);
  const auto classes = class_folders(train);
  for (const auto& [split, folder] : folders) list_split(out, split, folder, train, classes, skip_bad);
  return out.build(!skip_bad);
}

std::shared_ptr<PixelSource> folder_source(std::shared_ptr<const FolderIndex> index, data::Split split,
                                           const std::string& path, const Decoding& decoding) {
  return std::make_shared<FolderSource>(std::move(index), split, path, decoding);
}

}  // namespace trireme::datasets
