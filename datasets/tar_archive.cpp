#include "datasets/tar_archive.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <utility>

#include "core/base/error.h"
#include "core/base/mapped_bytes.h"
#include "core/base/text.h"

namespace trireme::datasets {
namespace {

constexpr std::int64_t kTarWindow = 4096;       // the header, a label and the header after it
constexpr std::int64_t kLargestText = 1 << 20;  // bytes of a label or of extended headers

/// Where the fields of a header are, and their lengths in bytes.
struct TarField {
  std::size_t at, length;
};
constexpr TarField kName{0, 100}, kSize{124, 12}, kChecksum{148, 8}, kMagic{257, 6}, kPrefix{345, 155};
constexpr std::size_t kType = 156;

std::string_view field_of(std::string_view header, const TarField& field) {
  return header.substr(field.at, field.length);
}

std::string_view until_zero(std::string_view bytes) { return bytes.substr(0, bytes.find('\0')); }

/// A number in octal digits, or, with the first bit set, in binary (GNU). nullopt: neither, or it is too large.
std::optional<std::int64_t> number_in(std::string_view bytes) {
  if ((static_cast<unsigned char>(bytes.front()) & 0x80U) != 0) {
    std::uint64_t value = static_cast<unsigned char>(bytes.front()) & 0x7fU;
    for (const char byte : bytes.substr(1)) {
      if (value >> 55 != 0) return std::nullopt;
      value = value << 8 | static_cast<unsigned char>(byte);
    }
    return static_cast<std::int64_t>(value);
  }
  bytes = until_zero(bytes);
  bytes.remove_prefix(std::min(bytes.find_first_not_of(' '), bytes.size()));
  bytes = bytes.substr(0, bytes.find(' '));
  if (bytes.empty()) return 0;
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(bytes.data(), bytes.data() + bytes.size(), value, 8);
  if (error != std::errc() || end != bytes.data() + bytes.size() || value < 0) return std::nullopt;
  return value;
}

/// Whether the header's checksum is right: the sum of its bytes, with spaces in the checksum's place.
bool is_header(std::string_view block) {
  std::int64_t sum = static_cast<std::int64_t>(kChecksum.length) * ' ';
  for (std::size_t i = 0; i < block.size(); ++i)
    if (i < kChecksum.at || i >= kChecksum.at + kChecksum.length) sum += static_cast<unsigned char>(block[i]);
  return number_in(field_of(block, kChecksum)) == sum;
}

}  // namespace

TarFile::TarFile(const std::string& path, Access access, std::string name)
    : name_(name.empty() ? path : std::move(name)) {
  auto [file, size] = open_regular<DataError>(path);
  file_ = std::move(file);
  size_ = static_cast<std::int64_t>(size);
  if (access == Access::files) ::posix_fadvise(file_.get(), 0, 0, POSIX_FADV_SEQUENTIAL);
}

void TarFile::read(std::int64_t offset, std::span<char> out) const {
  for (std::size_t done = 0; done < out.size();) {
    const auto at = offset + static_cast<std::int64_t>(done);
    const auto got = ::pread(file_.get(), out.data() + done, out.size() - done, at);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw DataError(fmt::format("{}: cannot be read at byte {}: {}", name_, at, std::strerror(errno)));
    if (got == 0)
      throw DataError(
          fmt::format("{}: truncated: the file ends at byte {}; copy or write this archive again", name_, at));
    done += static_cast<std::size_t>(got);
  }
}

void TarReader::damaged(const std::string& what) const {
  throw DataError(fmt::format("{}: {} at byte {}; copy or write this archive again", file_.name(), what, header_));
}

std::string_view TarReader::bytes(std::int64_t offset, std::int64_t count) {
  const auto end = window_at_ + static_cast<std::int64_t>(window_.size());
  if (offset < window_at_ || offset + count > end) {
    if (offset + count > file_.size())
      throw DataError(
          fmt::format("{}: truncated: the file ends at byte {} in the header at byte {}; copy or write "
                      "this archive again",
                      file_.name(), file_.size(), header_));
    window_.resize(static_cast<std::size_t>(std::min(std::max(count, kTarWindow), file_.size() - offset)));
    file_.read(offset, window_);
    window_at_ = offset;
  }
  return std::string_view(window_).substr(static_cast<std::size_t>(offset - window_at_),
                                          static_cast<std::size_t>(count));
}

// Each record is "LENGTH KEY=VALUE\n", and its length counts all of it.
void TarReader::read_pax(std::string_view records, Extension& to) const {
  while (!records.empty()) {
    std::size_t length = 0;
    const auto [end, error] = std::from_chars(records.data(), records.data() + records.size(), length);
    const auto before = static_cast<std::size_t>(end - records.data()) + 1;
    if (error != std::errc() || length <= before || length > records.size() || records[length - 1] != '\n')
      damaged("damaged pax header");
    const auto record = records.substr(before, length - before - 1);
    records.remove_prefix(length);
    const auto equals = record.find('=');
    if (equals == record.npos) damaged("damaged pax header");
    const auto key = record.substr(0, equals), value = record.substr(equals + 1);
    if (key == "path") to.name = std::string(value);
    if (key != "size") continue;
    to.size = text::integer(value);
    if (!to.size) damaged("damaged pax header");
  }
}

std::optional<TarMember> TarReader::next() {
  Extension extension;
  while (next_ < file_.size()) {
    header_ = next_;
    const std::string header(bytes(header_, kTarBlock));
    if (header.find_first_not_of('\0') == header.npos) return std::nullopt;
    if (!is_header(header))
      damaged(header_ == 0 ? "no tar archive (a compressed one must be decompressed first): no header"
                           : "damaged archive: no header");
    const char type = header[kType];
    const auto size = type >= '1' && type <= '6' ? 0
                      : extension.size           ? extension.size
                                                 : number_in(field_of(header, kSize));
    if (!size || *size < 0) damaged("damaged archive: no size in the header");
    const auto begin = header_ + kTarBlock;
    const auto name = extension.name ? *extension.name : tar_member_name(header).value_or("");
    if (*size > file_.size() - begin)
      throw DataError(
          fmt::format("{}: truncated: {} at byte {} has {} bytes, but the file ends at byte {}; copy or "
                      "write this archive again",
                      file_.name(), text::printable(name), begin, *size, file_.size()));
    next_ = begin + (*size + kTarBlock - 1) / kTarBlock * kTarBlock;
    if (type == 'L' || type == 'x') {
      if (*size > kLargestText) damaged("damaged archive: too long a name in the header");
      const std::string content(bytes(begin, *size));
      if (type == 'L') extension.name = std::string(until_zero(content));
      if (type == 'x') read_pax(content, extension);
      continue;
    }
    if (type == 'K' || type == 'g') continue;  // a link's target, or what holds for all members
    if ((type == '0' || type == '\0' || type == '7') && !name.ends_with('/')) return TarMember{name, begin, *size};
    extension = {};
  }
  return std::nullopt;
}

std::string TarReader::text(const TarMember& member) {
  if (member.size > kLargestText)
    throw DataError(fmt::format("{}: {} at byte {} has {} bytes, too many for a label", file_.name(),
                                text::printable(member.name), member.offset, member.size));
  return std::string(bytes(member.offset, member.size));
}

std::optional<std::string> tar_member_name(std::string_view header) {
  if (!is_header(header)) return std::nullopt;
  const std::string name(until_zero(field_of(header, kName)));
  const auto prefix = until_zero(field_of(header, kPrefix));
  const bool has_prefix = field_of(header, kMagic) == std::string_view("ustar\0", 6) && !prefix.empty();
  return has_prefix ? fmt::format("{}/{}", prefix, name) : name;
}

}  // namespace trireme::datasets
