// ImageSize: the height and width of images in pixels. In a configuration, and in Hugging Face's files, it is one
// integer for a square, else a list of the two.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace trireme::nn {

struct ImageSize {
  using List = std::vector<std::int64_t>;  ///< [height, width], its form in a field table

  std::int64_t height = 0, width = 0;

  ImageSize() = default;
  ImageSize(std::int64_t side) : height(side), width(side) {}  ///< implicit: one number is a size, as in a file
  ImageSize(std::int64_t rows, std::int64_t columns) : height(rows), width(columns) {}
  /// @pre `list` has two elements
  explicit ImageSize(const List& list) : height(list.at(0)), width(list.at(1)) {}
  explicit operator List() const { return {height, width}; }

  [[nodiscard]] bool is_square() const { return height == width; }
  [[nodiscard]] std::int64_t longer() const { return std::max(height, width); }
  /// As in a file: "224" or "[192, 256]".
  [[nodiscard]] std::string text() const {
    return is_square() ? fmt::format("{}", height) : fmt::format("[{}, {}]", height, width);
  }
  friend bool operator==(const ImageSize&, const ImageSize&) = default;
};

}  // namespace trireme::nn
