// Images in memory: uint8 tensors [H, W, 3], RGB, contiguous, decoded by the readers of codecs/.
//
// The format is determined by the file's first bytes, not by its name. Other pixel formats are converted to 8-bit RGB
// like Pillow's convert("RGB"): grey is repeated, 16 bits keep the high byte, CMYK follows Adobe's inverted convention.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "datasets/datasets.h"

namespace trireme::datasets {

/// Reads a file. `check` gets its size before it is read. @throws DataError that names it, and what `check` throws.
std::vector<unsigned char> read_bytes(const std::string& path,
                                      const std::function<void(std::uintmax_t bytes)>& check = nullptr);

inline constexpr const char* kIsFolder = "a folder";
/// What shows, without opening it, that a file is no image: "no such file", kIsFolder; null: nothing.
const char* file_problem(const std::string& path);

/// Whether the name has an ending of a format that can be decoded, in upper or lower case.
bool has_image_ending(const std::string& name);
/// These endings, for messages: ".jpg, .jpeg, ...".
std::string image_endings();

struct Decoding {
  std::int64_t most_pixels = kUsualMostPixels;  ///< an image with more is refused, by its header
  bool turn = false;  ///< EXIF's orientation is applied. That of a TIFF always is, as by Pillow.
  /// The colour behind transparent pixels; unset: alpha is dropped.
  std::optional<std::array<unsigned char, 3>> background{};
};
struct DecodedImage {
  at::Tensor pixels;
  bool has_orientation = false;  ///< EXIF's, and it is not upright
};
/// @throws DataError for a longer file than an image has: 16 bits of four channels a pixel, and 64 MiB for all else.
void check_bytes(std::uintmax_t bytes, const std::string& name, const Decoding& how);
/// @param name the image's name in messages: its file.
/// @throws DataError when the bytes are empty or of another format, too many pixels, or some missing or damaged.
DecodedImage decode_image(std::span<const unsigned char> bytes, const std::string& name, const Decoding& how = {});

/// The same of a file. @throws DataError, as check_bytes() and decode_image() do.
DecodedImage decode_file(const std::string& path, const Decoding& how);

/// The luma of an image, uint8 [H, W, 1], with the weights of ITU-R 601-2 in 16 bits, like Pillow's convert("L").
at::Tensor to_grey(const at::Tensor& image);

/// Writes uint8 [H, W, 3] as an 8-bit RGB PNG. @throws DataError when the file cannot be written.
void write_png(const std::string& path, const at::Tensor& image);

}  // namespace trireme::datasets
