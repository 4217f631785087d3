// Wraps libjpeg (libjpeg-turbo) without longjmp: its error jumps stay in this one source file (they must not cross a
// C++ destructor).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "datasets/image_reader.h"

namespace trireme::datasets::jpeg {

/// With the accurate DCT and smooth upsampling, as Pillow does. Of libjpeg's warnings, those that say that pixels are
/// missing or damaged are errors; odd headers, and bytes that no pixel needs, are not.
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

}  // namespace trireme::datasets::jpeg
