// Wraps libpng without longjmp: its error jumps stay in this one source file (they must not cross a C++ destructor).
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <span>
#include <string>

namespace trireme::datasets::png {

/// Reads one PNG from memory as 8-bit RGB. Each call returns false on an error, which error() describes.
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

/// @return false when libpng failed or the file could not be written (errno gives the cause of the latter).
bool write_rgb(std::FILE* file, const unsigned char* rgb, std::int64_t width, std::int64_t height);

}  // namespace trireme::datasets::png
