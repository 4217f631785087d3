// Wraps libpng without longjmp: its error jumps stay in this one source file (they must not cross a C++ destructor).
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <span>
#include <string>

#include "datasets/image_reader.h"

namespace trireme::datasets::png {

class Reader final : public ImageReader {
 public:
  explicit Reader(std::span<const unsigned char> bytes);
  ~Reader() override;

  bool read_header() override;
  [[nodiscard]] std::int64_t width() const override;
  [[nodiscard]] std::int64_t height() const override;
  bool read_rgb(unsigned char* out) override;
  [[nodiscard]] std::string error() const override;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// @return false when libpng failed or the file could not be written (errno gives the cause of the latter).
bool write_rgb(std::FILE* file, const unsigned char* rgb, std::int64_t width, std::int64_t height);

}  // namespace trireme::datasets::png
