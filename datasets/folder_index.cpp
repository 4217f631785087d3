#include "datasets/folder_index.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <filesystem>
#include <limits>
#include <utility>

#include "core/base/error.h"
#include "core/base/random.h"

namespace trireme::datasets {
namespace {

static_assert(std::endian::native == std::endian::little, "an index is written as it is in memory");

constexpr char kIndexFormat[8] = {'f', 'o', 'l', 'd', 'e', 'r', 's', '2'};
constexpr auto kTrain = static_cast<std::int32_t>(data::Split::train);

struct IndexHeader {
  char format[sizeof kIndexFormat];
  std::uint64_t folders, files, folder_bytes, name_bytes;
  std::uint64_t digest, ignored, checked;
};
static_assert(std::has_unique_object_representations_v<IndexHeader> &&
                  std::has_unique_object_representations_v<FolderIndex::Row>,
              "padding would be uninitialised bytes of the file");

IndexHeader header_of(const std::string& bytes) {
  IndexHeader header;
  std::memcpy(&header, bytes.data(), sizeof header);
  return header;
}

template <class T>
void append_values(std::string& bytes, const T* from, std::size_t count) {
  bytes.append(reinterpret_cast<const char*>(from), count * sizeof(T));
}

}  // namespace

FolderStamp stamp_of(const std::string& folder) {
  struct stat status {};
  if (::stat(folder.c_str(), &status) != 0) return {};
  return {status.st_ino, status.st_mtim.tv_sec * std::int64_t{1'000'000'000} + status.st_mtim.tv_nsec};
}

std::shared_ptr<const FolderIndex> FolderIndex::parse(std::string bytes) {
  if (bytes.size() < sizeof(IndexHeader)) return nullptr;
  const auto header = header_of(bytes);
  if (std::memcmp(header.format, kIndexFormat, sizeof kIndexFormat) != 0) return nullptr;
  // No count may exceed the block, so that the sum does not overflow.
  for (const auto count : {header.folders, header.files, header.folder_bytes, header.name_bytes})
    if (count > bytes.size()) return nullptr;
  if (bytes.size() != sizeof header + header.folders * sizeof(Row) + header.files * sizeof(std::uint32_t) +
                          header.folder_bytes + header.name_bytes)
    return nullptr;
  return std::shared_ptr<const FolderIndex>(new FolderIndex(std::move(bytes)));
}

FolderIndex::FolderIndex(std::string bytes) : bytes_(std::move(bytes)) {
  const auto header = header_of(bytes_);
  rows_.resize(header.folders);
  std::memcpy(rows_.data(), bytes_.data() + sizeof header, header.folders * sizeof(Row));
  ends_ = sizeof header + header.folders * sizeof(Row);
  auto at = ends_ + header.files * sizeof(std::uint32_t);
  names_ = at + header.folder_bytes;
  for (auto end = bytes_.find('\0', at); at < names_; at = end + 1, end = bytes_.find('\0', at))
    folders_.push_back(bytes_.substr(at, end - at));
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    if (rows_[i].split < 0) continue;
    const auto split = static_cast<std::size_t>(rows_[i].split);
    if (rows_[i].label < 0) first_files_[split] = rows_[i].first_file;
    const auto end = i + 1 < rows_.size() ? rows_[i + 1].first_file : header.files;
    sizes_[split] = static_cast<std::int64_t>(end - first_files_[split]);
  }
}

const FolderIndex::Row& FolderIndex::row_of(std::uint64_t file) const {
  // Folders without files begin at the same file as the next one, so the last row that begins there is the file's.
  return *std::prev(std::upper_bound(rows_.begin(), rows_.end(), file,
                                     [](std::uint64_t wanted, const Row& row) { return wanted < row.first_file; }));
}

std::int64_t FolderIndex::label(data::Split split, std::int64_t index) const {
  return row_of(first_files_[static_cast<std::size_t>(split)] + static_cast<std::uint64_t>(index)).label;
}

std::string FolderIndex::file(data::Split split, std::int64_t index) const {
  const auto number = first_files_[static_cast<std::size_t>(split)] + static_cast<std::uint64_t>(index);
  const auto& row = row_of(number);
  const auto end_of = [this](std::uint64_t file) {
    std::uint32_t end = 0;
    std::memcpy(&end, bytes_.data() + ends_ + file * sizeof end, sizeof end);
    return end;
  };
  const std::uint32_t begin = number == row.first_file ? 0 : end_of(number - 1);
  const auto name = std::string_view(bytes_).substr(names_ + row.first_byte + begin, end_of(number) - begin);
  return fmt::format("{}/{}", folders_[static_cast<std::size_t>(&row - rows_.data())], name);
}

std::vector<std::string> FolderIndex::classes() const {
  std::vector<std::string> out;
  for (std::size_t i = 0; i < rows_.size(); ++i)
    if (rows_[i].split == kTrain && rows_[i].label >= 0)
      out.push_back(std::filesystem::path(folders_[i]).filename().string());
  return out;
}

std::string FolderIndex::digest() const { return fmt::format("{:016x}", header_of(bytes_).digest); }
std::int64_t FolderIndex::ignored_files() const { return static_cast<std::int64_t>(header_of(bytes_).ignored); }
bool FolderIndex::files_checked() const { return header_of(bytes_).checked != 0; }

void FolderIndexBuilder::add_folder(const std::string& folder, const FolderStamp& stamp,
                                    std::optional<data::Split> split, std::int64_t label) {
  rows_.push_back({.stamp = stamp,
                   .first_file = ends_.size(),
                   .first_byte = names_.size(),
                   .split = split ? static_cast<std::int32_t>(*split) : -1,
                   .label = static_cast<std::int32_t>(label)});
  folders_.append(folder).push_back('\0');
}

void FolderIndexBuilder::add_file(std::string_view name) {
  const auto end = names_.size() + name.size() - rows_.back().first_byte;
  if (end > std::numeric_limits<std::uint32_t>::max())
    throw DataError(fmt::format("{}: the names of the files in this class folder have more than 4 GiB; use fewer files",
                                folders_.substr(folders_.rfind('\0', folders_.size() - 2) + 1)));
  names_.append(name);
  ends_.push_back(static_cast<std::uint32_t>(end));
}

std::uint64_t FolderIndexBuilder::train_digest() const {
  const auto file_after = [&](std::size_t row) {
    return row + 1 < rows_.size() ? rows_[row + 1].first_file : ends_.size();
  };
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < rows_.size(); ++i)
    if (rows_[i].split == kTrain) sum += file_after(i) - rows_[i].first_file;
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    if (rows_[i].split != kTrain) continue;
    std::uint32_t begin = 0;
    for (auto file = rows_[i].first_file; file < file_after(i); begin = ends_[file++])
      sum =
          random::mix(sum + static_cast<std::uint64_t>(rows_[i].label),
                      random::hash(std::string_view(names_).substr(rows_[i].first_byte + begin, ends_[file] - begin)));
  }
  return sum;
}

std::shared_ptr<const FolderIndex> FolderIndexBuilder::build(bool files_checked) const {
  IndexHeader header{.format = {},
                     .folders = rows_.size(),
                     .files = ends_.size(),
                     .folder_bytes = folders_.size(),
                     .name_bytes = names_.size(),
                     .digest = train_digest(),
                     .ignored = ignored_,
                     .checked = files_checked};
  std::copy(std::begin(kIndexFormat), std::end(kIndexFormat), header.format);
  std::string bytes;
  bytes.reserve(sizeof header + rows_.size() * sizeof(FolderIndex::Row) + ends_.size() * sizeof(std::uint32_t) +
                folders_.size() + names_.size());
  append_values(bytes, &header, 1);
  append_values(bytes, rows_.data(), rows_.size());
  append_values(bytes, ends_.data(), ends_.size());
  bytes.append(folders_).append(names_);
  return FolderIndex::parse(std::move(bytes));
}

}  // namespace trireme::datasets
