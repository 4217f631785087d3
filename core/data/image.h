// Images in memory: uint8 tensors [H, W, 3], RGB, contiguous. Decoding JPEG (libjpeg-turbo) and PNG (libpng).
//
// The format is told by the file's first bytes, not by its name. What differs from plain 8-bit RGB becomes RGB as
// Pillow's convert("RGB") does it: grey is repeated, alpha is dropped, 16 bits keep the high byte, CMYK follows Adobe's
// inverted convention. EXIF orientation is not applied, as Hugging Face's image processors do not.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace trireme::data {

/// The bytes of a file. @throws DataError that names it.
std::vector<unsigned char> read_bytes(const std::string& path);

/// @param name what messages call the image: its file.
/// @throws DataError when the bytes are empty, of another format, cut short or damaged (a decoder's warning is damage).
at::Tensor decode_image(std::span<const unsigned char> bytes, const std::string& name);

/// Writes uint8 [H, W, 3] as an 8-bit RGB PNG. @throws DataError when the file cannot be written.
void write_png(const std::string& path, const at::Tensor& image);

}  // namespace trireme::data
