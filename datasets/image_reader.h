// ImageReader: one image of a format, read from memory as 8-bit RGB. png_codec.h and jpeg_codec.h fulfil it.
#pragma once

#include <cstdint>
#include <string>

namespace trireme::datasets {

/// Each call that returns bool returns false on an error, which error() describes.
class ImageReader {
 public:
  ImageReader() = default;
  ImageReader(const ImageReader&) = delete;
  ImageReader& operator=(const ImageReader&) = delete;
  virtual ~ImageReader() = default;

  virtual bool read_header() = 0;
  [[nodiscard]] virtual std::int64_t width() const = 0;
  [[nodiscard]] virtual std::int64_t height() const = 0;
  /// @param out width * height * 3 bytes, rows from the top. @pre read_header() returned true
  virtual bool read_rgb(unsigned char* out) = 0;
  [[nodiscard]] virtual std::string error() const = 0;
};

}  // namespace trireme::datasets
