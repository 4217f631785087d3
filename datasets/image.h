// Images in memory: uint8 tensors [H, W, 3], RGB, contiguous. Decoding JPEG (jpeg_codec.h) and PNG (png_codec.h).
//
// The format is determined by the file's first bytes, not by its name. Other pixel formats are converted to 8-bit RGB
// like Pillow's convert("RGB"): grey is repeated, alpha is dropped, 16 bits keep the high byte, CMYK follows Adobe's
// inverted convention. EXIF orientation is not applied, as in Hugging Face's image processors.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace trireme::datasets {

/// Reads a file. @throws DataError that names it.
std::vector<unsigned char> read_bytes(const std::string& path);

/// @param name the image's name in messages: its file.
/// @throws DataError when the bytes are empty or of another format, or pixels are missing or damaged.
at::Tensor decode_image(std::span<const unsigned char> bytes, const std::string& name);

/// The luma of an image, uint8 [H, W, 1], with the weights of ITU-R 601-2 in 16 bits, like Pillow's convert("L").
at::Tensor to_grey(const at::Tensor& image);

/// Writes uint8 [H, W, 3] as an 8-bit RGB PNG. @throws DataError when the file cannot be written.
void write_png(const std::string& path, const at::Tensor& image);

}  // namespace trireme::datasets
