// libpng behind a face without longjmp: the one file where its error jumps live (they must cross no C++ destructor).
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <span>
#include <string>

namespace trireme::data::png {

/// Reads one PNG from memory as 8-bit RGB. Each call returns false on an error, which error() then tells.
class Reader {
 public:
  explicit Reader(std::span<const unsigned char> bytes);
  ~Reader();
  Reader(const Reader&) = delete;

  bool read_header();
  [[nodiscard]] std::int64_t width() const;
  [[nodiscard]] std::int64_t height() const;
  /// @param out width * height * 3 bytes, rows from the top. @pre read_header() was true
  bool read_rgb(unsigned char* out);
  [[nodiscard]] std::string error() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// @return false when libpng or the disk refused (errno tells the latter).
bool write_rgb(std::FILE* file, const unsigned char* rgb, std::int64_t width, std::int64_t height);

}  // namespace trireme::data::png
