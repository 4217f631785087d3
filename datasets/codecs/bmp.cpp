#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>

#include "datasets/codecs/image_reader.h"

namespace trireme::datasets {
namespace {

constexpr std::uint32_t kPlain = 0, kRle8 = 1, kRle4 = 2, kMasks = 3;  ///< compressions
constexpr std::size_t kFileHeader = 14, kOldHeader = 12, kInfoHeader = 40, kAlphaHeader = 56;

/// Windows bitmaps, after Microsoft's "Bitmap Header Types". Rows of pixels of 1 to 32 bits, the lowest row first
/// unless the height is negative.
class BmpReader final : public ImageReader {
 public:
  explicit BmpReader(Bytes bytes) : bytes_(bytes) {}

  bool read_header() override {
    const std::size_t header = number(kFileHeader, 4);
    const bool old = header == kOldHeader;
    if (!old && header < kInfoHeader) return fail("its header has an unknown size");
    const auto at = kFileHeader + 4;
    const auto side = [&](std::size_t i) -> std::int64_t {
      if (old) return number(at + 2 * i, 2);
      return static_cast<std::int32_t>(number(at + 4 * i, 4));
    };
    const auto rows = side(1);
    width_ = side(0);
    height_ = rows < 0 ? -rows : rows;
    top_down_ = rows < 0;
    bits_ = number(at + (old ? 6 : 10), 2);
    compression_ = old ? kPlain : number(at + 12, 4);
    data_ = number(10, 4);
    const bool has_palette = bits_ == 1 || bits_ == 4 || bits_ == 8;
    if (!has_palette && bits_ != 16 && bits_ != 24 && bits_ != 32) return fail("its pixels have an unknown size");
    if (!(compression_ == kPlain || (compression_ == kRle8 && bits_ == 8) || (compression_ == kRle4 && bits_ == 4) ||
          (compression_ == kMasks && (bits_ == 16 || bits_ == 32))))
      return fail("its compression is unknown");
    const auto end = kFileHeader + header;
    if (has_palette) {
      const auto palette_end = read_palette(end, old ? 3 : 4, old ? 0 : number(at + 28, 4));
      if (data_ == 0 || data_ == end) data_ = palette_end;  // some writers forget the palette
    } else {
      read_masks(header);
      if (data_ == 0) data_ = end + (compression_ == kMasks && header == kInfoHeader ? 12 : 0);
    }
    return data_ >= end || fail("its pixels begin inside its header");
  }
  [[nodiscard]] std::int64_t width() const override { return width_; }
  [[nodiscard]] std::int64_t height() const override { return height_; }
  [[nodiscard]] bool has_alpha() const override { return masks_[3] != 0; }

  bool read(unsigned char* out) override {
    return compression_ == kRle8 || compression_ == kRle4 ? read_runs(out) : read_rows(out);
  }
  [[nodiscard]] std::string error() const override { return error_; }

 private:
  using Masks = std::array<std::uint32_t, 4>;

  bool fail(const char* why) {
    error_ = why;
    return false;
  }
  /// Little-endian, of 1 to 4 bytes; 0 beyond the end.
  [[nodiscard]] std::uint32_t number(std::size_t at, std::size_t size) const {
    if (at > bytes_.size() || bytes_.size() - at < size) return 0;
    std::uint32_t value = 0;
    for (std::size_t i = size; i-- > 0;) value = value << 8 | bytes_[at + i];
    return value;
  }
  /// Returns where it ends.
  std::size_t read_palette(std::size_t at, std::size_t entry, std::uint32_t count) {
    if (count == 0 || count > palette_.size()) count = 1U << bits_;
    for (std::size_t i = 0; i < count; ++i) palette_[i] = number(at + i * entry, 3);
    return at + count * entry;
  }
  void read_masks(std::size_t header) {
    if (compression_ == kMasks) {
      for (std::size_t i = 0; i < 3; ++i) masks_[i] = number(kFileHeader + kInfoHeader + 4 * i, 4);
      if (header >= kAlphaHeader) masks_[3] = number(kFileHeader + kInfoHeader + 12, 4);
    } else {
      masks_ = bits_ == 16 ? Masks{0x7C00, 0x3E0, 0x1F, 0} : Masks{0xFF0000, 0xFF00, 0xFF, 0};
    }
    if ((masks_[0] | masks_[1] | masks_[2]) == 0) masks_ = {0xFF0000, 0xFF00, 0xFF, 0xFF000000};
  }

  [[nodiscard]] unsigned char* row(unsigned char* out, std::int64_t y) const {
    return out + (top_down_ ? y : height_ - 1 - y) * width_ * (has_alpha() ? 4 : 3);
  }
  void paint(unsigned char* pixel, std::size_t index) const {
    for (int channel = 0; channel < 3; ++channel)
      pixel[channel] = static_cast<unsigned char>(palette_[index] >> (16 - 8 * channel));
  }
  /// The bits of a mask, as 0 to 255.
  static unsigned char part_of(std::uint32_t value, std::uint32_t mask) {
    if (mask == 0) return 0;
    const auto shift = std::countr_zero(mask);
    const std::uint64_t most = mask >> shift;
    return static_cast<unsigned char>(((value & mask) >> shift) * std::uint64_t{255} / most);
  }

  bool read_rows(unsigned char* out) const {
    const std::size_t stride = (static_cast<std::size_t>(width_) * bits_ + 31) / 32 * 4, bytes = bits_ / 8;
    for (std::int64_t y = 0; y < height_; ++y) {
      const auto at = data_ + static_cast<std::size_t>(y) * stride;
      if (at + (static_cast<std::size_t>(width_) * bits_ + 7) / 8 > bytes_.size()) return false;
      auto* pixel = row(out, y);
      for (std::size_t x = 0; x < static_cast<std::size_t>(width_); ++x) {
        if (bits_ <= 8) {
          const auto bit = x * bits_;
          paint(pixel, bytes_[at + bit / 8] >> (8 - bits_ - bit % 8) & ((1U << bits_) - 1));
        } else if (bits_ == 24) {
          std::reverse_copy(&bytes_[at + 3 * x], &bytes_[at + 3 * x] + 3, pixel);
        } else {
          const auto value = number(at + bytes * x, bytes);
          for (std::size_t channel = 0; channel < (has_alpha() ? 4 : 3); ++channel)
            pixel[channel] = part_of(value, masks_[channel]);
        }
        pixel += has_alpha() ? 4 : 3;
      }
    }
    return true;
  }

  /// Runs of one colour (of two in turn with 4 bits), runs of pixels, ends of rows, and jumps, which leave colour 0.
  bool read_runs(unsigned char* out) const {
    for (std::int64_t i = 0; i < width_ * height_; ++i) paint(out + 3 * i, 0);
    std::int64_t x = 0, y = 0;
    const auto put = [&](std::size_t index) {
      if (x < width_ && y < height_) paint(row(out, y) + 3 * x, index);
      ++x;
    };
    const auto nibble = [](std::size_t byte, std::size_t i) { return i % 2 == 0 ? byte >> 4 : byte & 15; };
    for (auto at = data_; at + 2 <= bytes_.size();) {
      const std::size_t count = bytes_[at], value = bytes_[at + 1];
      at += 2;
      if (count > 0) {
        for (std::size_t i = 0; i < count; ++i) put(bits_ == 8 ? value : nibble(value, i));
      } else if (value == 0) {
        x = 0, ++y;
      } else if (value == 1) {
        return true;
      } else if (value == 2) {
        x += number(at, 1), y += number(at + 1, 1);
        at += 2;
      } else {
        for (std::size_t i = 0; i < value; ++i) put(bits_ == 8 ? number(at + i, 1) : nibble(number(at + i / 2, 1), i));
        at += ((bits_ == 8 ? value : (value + 1) / 2) + 1) / 2 * 2;
      }
    }
    return y >= height_ || (y == height_ - 1 && x >= width_);  // some writers leave out the end
  }

  Bytes bytes_;
  std::size_t data_ = 0;  ///< where the pixels begin
  std::int64_t width_ = 0, height_ = 0;
  bool top_down_ = false;
  std::uint32_t bits_ = 0, compression_ = kPlain;
  std::array<std::uint32_t, 256> palette_{};  ///< 0xRRGGBB
  Masks masks_{};                             ///< of red, green, blue and alpha in a pixel
  const char* error_ = "the data ends too early";
};

}  // namespace

std::unique_ptr<ImageReader> bmp_reader(Bytes bytes) { return std::make_unique<BmpReader>(bytes); }

}  // namespace trireme::datasets
