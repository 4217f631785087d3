// FolderIndex: which images an image folder has, as one block of bytes, which a file can hold and a socket can send.
// An image costs its file name and 4 bytes; the folders' names are stored once, and labels follow from the folders.
//
// The block: a header; a row per folder that was listed (the root, then each split and its classes); the end of each
// file's name (32 bits, from its folder's first name); the folders' paths below the root, each followed by a zero byte;
// the file names. Numbers are little-endian. The files of a folder are contiguous.
// Invariant: an index is not modified after it was made, so reading is thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/data/datasets.h"

namespace trireme::datasets {

/// Changes when a file of the folder is added, removed or renamed, and when another folder takes its place.
struct FolderStamp {
  std::uint64_t inode = 0;
  std::int64_t modified_ns = 0;  ///< since 1970
  friend bool operator==(const FolderStamp&, const FolderStamp&) = default;
};
/// All zeros when there is no such folder.
FolderStamp stamp_of(const std::string& folder);

class FolderIndex {
 public:
  /// A folder that was listed. Only classes have a label and files; the root has no split.
  struct Row {
    FolderStamp stamp;
    std::uint64_t first_file = 0;  ///< number of the folder's first file, counted over all splits
    std::uint64_t first_byte = 0;  ///< of that file's name among all names
    std::int32_t split = -1;
    std::int32_t label = -1;
  };

  /// The index that bytes() returned, or null when these bytes are none, or of another version.
  static std::shared_ptr<const FolderIndex> parse(std::string bytes);

  [[nodiscard]] const std::string& bytes() const { return bytes_; }
  [[nodiscard]] const std::vector<Row>& rows() const { return rows_; }
  /// The path of each row's folder below the root; "" for the root itself.
  [[nodiscard]] const std::vector<std::string>& folders() const { return folders_; }
  [[nodiscard]] std::vector<std::string> classes() const;  ///< by label

  /// Number of images of a split; 0 if the folder has no such split.
  [[nodiscard]] std::int64_t size(data::Split split) const { return sizes_[static_cast<std::size_t>(split)]; }
  [[nodiscard]] std::int64_t label(data::Split split, std::int64_t index) const;
  /// The image's path below the root.
  [[nodiscard]] std::string file(data::Split split, std::int64_t index) const;

  /// Digest of the training images' names and labels in order; it does not depend on the path of the folder.
  [[nodiscard]] std::string digest() const;
  /// Number of files in class folders that are no images by their names.
  [[nodiscard]] std::int64_t ignored_files() const;
  /// Whether every image was a regular file with at least one byte when the folder was listed; else not examined.
  [[nodiscard]] bool files_checked() const;

 private:
  explicit FolderIndex(std::string bytes);
  [[nodiscard]] const Row& row_of(std::uint64_t file) const;

  std::string bytes_;
  std::vector<Row> rows_;
  std::vector<std::string> folders_;
  std::size_t ends_ = 0, names_ = 0;  ///< where these parts begin in the block
  std::array<std::uint64_t, std::size(data::kSplits)> first_files_{};
  std::array<std::int64_t, std::size(data::kSplits)> sizes_{};
};

/// Builds an index from folders in the order of the block, each followed by its files.
class FolderIndexBuilder {
 public:
  /// @param folder its path below the root
  void add_folder(const std::string& folder, const FolderStamp& stamp, std::optional<data::Split> split = std::nullopt,
                  std::int64_t label = -1);
  /// Adds a file to the last folder. @throws DataError when names of one folder have 4 GiB
  void add_file(std::string_view name);
  void ignore_file() { ++ignored_; }
  /// Number of files of the last folder.
  [[nodiscard]] std::int64_t files() const { return static_cast<std::int64_t>(ends_.size() - rows_.back().first_file); }
  std::shared_ptr<const FolderIndex> build(bool files_checked) const;

 private:
  [[nodiscard]] std::uint64_t train_digest() const;

  std::vector<FolderIndex::Row> rows_;
  std::vector<std::uint32_t> ends_;
  std::string folders_, names_;
  std::uint64_t ignored_ = 0;
};

}  // namespace trireme::datasets
