#include "datasets/codecs/exif.h"

#include <algorithm>
#include <cstddef>
#include <string_view>

namespace trireme::datasets {
namespace {

constexpr std::uint32_t kOrientationTag = 0x0112, kShort = 3, kLong = 4;

/// Numbers of a TIFF header's byte order; 0 beyond the end.
struct ExifNumbers {
  Bytes bytes;
  bool big_endian;
  [[nodiscard]] std::uint32_t at(std::size_t offset, std::size_t size) const {
    if (offset > bytes.size() || bytes.size() - offset < size) return 0;
    std::uint32_t value = 0;
    for (std::size_t i = 0; i < size; ++i) value = value << 8 | bytes[offset + (big_endian ? i : size - 1 - i)];
    return value;
  }
};

}  // namespace

int exif_orientation(Bytes exif) {
  constexpr std::string_view kPrefix("Exif\0\0", 6);
  if (exif.size() >= kPrefix.size() && std::equal(kPrefix.begin(), kPrefix.end(), exif.begin()))
    exif = exif.subspan(kPrefix.size());
  if (exif.size() < 8 || exif[0] != exif[1] || (exif[0] != 'I' && exif[0] != 'M')) return kUpright;
  const ExifNumbers numbers{exif, exif[0] == 'M'};
  const std::size_t directory = numbers.at(4, 4);
  for (std::size_t i = 0, entries = numbers.at(directory, 2); i < entries; ++i) {
    const auto entry = directory + 2 + 12 * i;
    if (numbers.at(entry, 2) != kOrientationTag) continue;
    const auto type = numbers.at(entry + 2, 2);
    const auto value = type == kShort ? numbers.at(entry + 8, 2) : type == kLong ? numbers.at(entry + 8, 4) : 0;
    return value >= kUpright && value <= kLastOrientation ? static_cast<int>(value) : kUpright;
  }
  return kUpright;
}

at::Tensor turn_upright(const at::Tensor& image, int orientation) {
  constexpr std::int64_t kRows = 0, kColumns = 1;
  auto out = orientation >= 5 ? image.transpose(kRows, kColumns) : image;
  if (orientation == 3 || orientation == 4 || orientation == 7 || orientation == 8) out = out.flip(kRows);
  if (orientation == 2 || orientation == 3 || orientation == 6 || orientation == 7) out = out.flip(kColumns);
  return out.contiguous();
}

}  // namespace trireme::datasets
