// What scanning a data set has found, kept in a file of the user's cache folder for later runs. Nothing depends on it:
// a file that is missing, damaged or of another version is treated as absent, and the data set is scanned again.
//
// A file holds a line with the format's version, the CRC-32 of the content (4 bytes), and the content. It is in
// XDG_CACHE_HOME/trireme/index, or else in ~/.cache/trireme/index.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace trireme::datasets {

/// File systems round modification times, some of them to two seconds: a change within this time before a scan may be
/// followed by another one with the same time.
inline constexpr auto kStampGranularity = std::chrono::seconds(2);

/// Size and time of the last change of a file.
struct FileStamp {
  std::int64_t bytes = 0, modified_ns = 0;
  bool reliable = false;  ///< whether a later change has another time
};
/// Unset when there is no such file.
std::optional<FileStamp> file_stamp(const std::string& path);

/// The folder of these files, which may not exist; empty when the user has no cache folder.
std::filesystem::path index_folder();

/// The content that write_index() stored under this name, or nullopt. The content must state what it was made from, so
/// that its owner can compare that with the data.
std::optional<std::string> read_index(const std::string& name);

/// Stores a content atomically and replaces an older one. @returns whether it was stored: a cache folder may be
/// read-only or full.
bool write_index(const std::string& name, const std::string& content);

/// Texts and numbers one after the other in a string.
class Packer {
 public:
  void add(std::string_view text);
  void add(std::int64_t number);
  template <class T>
  requires std::is_trivially_copyable_v<T>
  void add_values(const std::vector<T>& values) {
    add(std::string_view(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)));
  }
  std::string bytes;
};
/// Reads what a Packer has written. @throws LogicError for something else
class Unpacker {
 public:
  explicit Unpacker(std::string_view bytes) : left_(bytes) {}
  std::string text();
  std::int64_t number();
  template <class T>
  std::vector<T> values() {
    const auto packed = text();
    std::vector<T> out(packed.size() / sizeof(T));
    std::copy_n(packed.data(), packed.size(), reinterpret_cast<char*>(out.data()));
    return out;
  }
  [[nodiscard]] bool at_end() const { return left_.empty(); }

 private:
  std::string_view take(std::size_t size);
  std::string_view left_;
};

}  // namespace trireme::datasets
