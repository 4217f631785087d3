// Tar archives: which files an archive holds and where their bytes are, without reading these bytes.
//
// Formats: ustar and pax (the path and size of its extended headers), as in POSIX.1-2017, "pax - portable archive
// interchange", and GNU tar's long names and binary sizes. A compressed archive is refused, because its files cannot be
// read at an offset. An archive ends with a block of zeros, or with the file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "core/base/file_descriptor.h"

namespace trireme::datasets {

/// Headers and files begin at multiples of this many bytes.
inline constexpr std::int64_t kTarBlock = 512;

/// An archive that is open for reading at offsets. Thread-safe.
class TarFile {
 public:
  enum class Access { headers, files };
  /// `access`: what is read; the kernel reads further ahead for files. `name`: for errors; "": the path.
  /// @throws DataError
  TarFile(const std::string& path, Access access, std::string name = "");

  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] std::int64_t size() const { return size_; }
  /// Fills `out` with the bytes from `offset`. @throws DataError, also when the file ends before
  void read(std::int64_t offset, std::span<char> out) const;

 private:
  std::string name_;
  FileDescriptor file_;
  std::int64_t size_ = 0;
};

/// A regular file in an archive. Its header is the block before its bytes.
struct TarMember {
  std::string name;
  std::int64_t offset = 0, size = 0;  ///< of its bytes
};

/// Walks through the members of an archive.
class TarReader {
 public:
  explicit TarReader(const TarFile& file) : file_(file) {}

  /// The next regular file; folders, links and devices are passed over. nullopt: the end of the archive.
  /// @throws DataError with the archive and the offset when a header is damaged or the archive is truncated.
  std::optional<TarMember> next();
  /// The content of a small member: a label. @throws DataError when it is larger than 1 MiB
  std::string text(const TarMember& member);

 private:
  /// What the headers before a member's own header say about it.
  struct Extension {
    std::optional<std::string> name;
    std::optional<std::int64_t> size;
  };
  void read_pax(std::string_view records, Extension& to) const;
  std::string_view bytes(std::int64_t offset, std::int64_t count);
  [[noreturn]] void damaged(const std::string& what) const;

  const TarFile& file_;
  std::int64_t header_ = 0, next_ = 0;  ///< offsets of the last and the next header
  std::string window_;                  ///< the bytes from window_at_: one read serves several small members
  std::int64_t window_at_ = 0;
};

/// The name in a header, or nullopt when the block is no header. A name longer than 100 bytes may be cut off.
std::optional<std::string> tar_member_name(std::string_view header);

}  // namespace trireme::datasets
