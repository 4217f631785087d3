// Wraps libjpeg (libjpeg-turbo) without longjmp: its error jumps stay in this one source file (they must not cross a
// C++ destructor).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace trireme::datasets::jpeg {

/// Reads one JPEG from memory as 8-bit RGB, with the accurate DCT and smooth upsampling, as Pillow does. Each call
/// returns false on an error, which error() describes. Of libjpeg's warnings, those that say that pixels are missing or
/// damaged are errors; odd headers, and bytes that no pixel needs, are not.
class Reader {
 public:
  explicit Reader(std::span<const unsigned char> bytes);
  ~Reader();
  Reader(const Reader&) = delete;

  bool read_header();
  [[nodiscard]] std::int64_t width() const;
  [[nodiscard]] std::int64_t height() const;
  /// @param out width * height * 3 bytes, rows from the top. @pre read_header() returned true
  bool read_rgb(unsigned char* out);
  [[nodiscard]] std::string error() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace trireme::datasets::jpeg
