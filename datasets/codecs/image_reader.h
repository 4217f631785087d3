// ImageReader: one image of a format, read from memory as 8-bit RGB or RGBA, and the formats' readers. Each hides a
// library: its types, its error jumps (which must not cross a C++ destructor) and its callbacks stay in one source
// file.
//
// Pixels are those of Pillow's convert("RGB"), or of convert("RGBA") where there is transparency.
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <span>
#include <string>

namespace trireme::datasets {

using Bytes = std::span<const unsigned char>;

/// Each call that returns bool returns false on an error, which error() describes. What describes the image needs a
/// read_header() that returned true.
class ImageReader {
 public:
  ImageReader() = default;
  ImageReader(const ImageReader&) = delete;
  ImageReader& operator=(const ImageReader&) = delete;
  virtual ~ImageReader() = default;

  virtual bool read_header() = 0;
  [[nodiscard]] virtual std::int64_t width() const = 0;
  [[nodiscard]] virtual std::int64_t height() const = 0;
  /// Whether pixels have 4 bytes instead of 3. Alpha is not premultiplied.
  [[nodiscard]] virtual bool has_alpha() const { return false; }
  /// How the image was held (exif.h).
  [[nodiscard]] virtual int orientation() const { return 1; }
  /// @param out rows from the top, without gaps
  virtual bool read(unsigned char* out) = 0;
  [[nodiscard]] virtual std::string error() const = 0;
};

/// By libjpeg, with the accurate DCT and smooth upsampling. Of its warnings, those that say that pixels are missing or
/// damaged are errors; odd headers, and bytes that no pixel needs, are not. Adobe's convention holds for CMYK.
std::unique_ptr<ImageReader> jpeg_reader(Bytes bytes);
/// By libpng. Of 16 bits, the high byte.
std::unique_ptr<ImageReader> png_reader(Bytes bytes);
/// By libwebp; of an animation, the first frame.
std::unique_ptr<ImageReader> webp_reader(Bytes bytes);
/// By giflib; of an animation, the first frame.
std::unique_ptr<ImageReader> gif_reader(Bytes bytes);
/// By libtiff; of several images, the first. 16 bits become 8, rounded for colours and the high byte for grey; floating
/// point is refused.
std::unique_ptr<ImageReader> tiff_reader(Bytes bytes);
/// Windows bitmaps of 1 to 32 bits, with a palette, run lengths or masks; and those of OS/2 1.x. Their data end where
/// the last row does.
std::unique_ptr<ImageReader> bmp_reader(Bytes bytes);

/// @return false when libpng failed or the file could not be written (errno gives the cause of the latter).
bool write_png(std::FILE* file, const unsigned char* rgb, std::int64_t width, std::int64_t height);

}  // namespace trireme::datasets
