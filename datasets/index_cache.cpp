#include "datasets/index_cache.h"

#include <sys/stat.h>

#include <cstring>

#include "core/base/environment.h"
#include "core/base/error.h"
#include "core/base/files/digest.h"
#include "core/base/files/files.h"

namespace trireme::datasets {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kIndexVersion = "trireme index 5\n";
constexpr std::size_t kIndexHeader = kIndexVersion.size() + sizeof(std::uint32_t);

std::string checksum_of(std::string_view content) {
  const auto crc = crc32(0, content.data(), content.size());
  std::string bytes(sizeof crc, '\0');
  std::memcpy(bytes.data(), &crc, sizeof crc);
  return bytes;
}

}  // namespace

std::optional<FileStamp> file_stamp(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return std::nullopt;
  const auto modified = std::chrono::seconds(status.st_mtim.tv_sec) + std::chrono::nanoseconds(status.st_mtim.tv_nsec);
  return FileStamp{status.st_size, modified.count(),
                   modified < std::chrono::system_clock::now().time_since_epoch() - kStampGranularity};
}

fs::path index_folder() { return cache_folder("index"); }

std::optional<std::string> read_index(const std::string& name) {
  const auto folder = index_folder();
  std::error_code error;
  if (folder.empty() || !fs::is_regular_file(folder / name, error)) return std::nullopt;
  try {
    auto file = read_file((folder / name).string());
    if (file.size() < kIndexHeader || !file.starts_with(kIndexVersion)) return std::nullopt;
    const auto content = std::string_view(file).substr(kIndexHeader);
    if (file.substr(kIndexVersion.size(), sizeof(std::uint32_t)) != checksum_of(content)) return std::nullopt;
    return file.erase(0, kIndexHeader);
  } catch (const CheckpointError&) {
    return std::nullopt;  // another user's file, or a file system that fails: the scan needs neither
  }
}

bool write_index(const std::string& name, const std::string& content) {
  const auto folder = index_folder();
  if (folder.empty()) return false;
  try {
    make_folder(folder.string());
    write_file((folder / name).string(), std::string(kIndexVersion) + checksum_of(content) + content);
    return true;
  } catch (const CheckpointError&) {
    return false;
  }
}

void Packer::add(std::int64_t number) { bytes.append(reinterpret_cast<const char*>(&number), sizeof number); }

void Packer::add(std::string_view text) {
  add(static_cast<std::int64_t>(text.size()));
  bytes += text;
}

std::string_view Unpacker::take(std::size_t size) {
  TRIREME_CHECK(size <= left_.size(), "{} bytes of {} that are left", size, left_.size());
  const auto out = left_.substr(0, size);
  left_.remove_prefix(size);
  return out;
}

std::int64_t Unpacker::number() {
  std::int64_t out = 0;
  std::memcpy(&out, take(sizeof out).data(), sizeof out);
  return out;
}

std::string Unpacker::text() {
  const auto size = number();
  return std::string(take(static_cast<std::size_t>(size)));
}

}  // namespace trireme::datasets
