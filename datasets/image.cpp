#include "datasets/image.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include "core/base/error.h"
#include "core/base/mapped_bytes.h"
#include "datasets/jpeg_codec.h"
#include "datasets/png_codec.h"

namespace trireme::datasets {
namespace {

constexpr std::int64_t kMaxPixels = 1LL << 28;  // 268 megapixels: a larger size is treated as a malicious header

[[noreturn]] void corrupt(const std::string& name, const std::string& what) {
  throw DataError(fmt::format("{}: {}", name, what));
}

at::Tensor empty_rgb(const std::string& name, std::int64_t height, std::int64_t width) {
  if (height < 1 || width < 1 || height > kMaxPixels / width)
    corrupt(name, fmt::format("its header says {} x {} pixels", width, height));
  return at::empty({height, width, 3}, at::kByte);
}

at::Tensor decode(ImageReader&& reader, const std::string& name, const char* format) {
  if (!reader.read_header()) corrupt(name, fmt::format("not a {} that can be decoded ({})", format, reader.error()));
  auto image = empty_rgb(name, reader.height(), reader.width());
  if (!reader.read_rgb(image.mutable_data_ptr<unsigned char>()))
    corrupt(name, fmt::format("damaged {} ({})", format, reader.error()));
  return image;
}

}  // namespace

std::vector<unsigned char> read_bytes(const std::string& path) {
  const auto [file, size] = open_regular<DataError>(path);
  std::vector<unsigned char> bytes(size + 1);  // a file system may know less than the file's size
  std::size_t done = 0;
  while (const auto got = ::read(file.get(), bytes.data() + done, bytes.size() - done)) {
    if (got < 0) throw DataError(fmt::format("{}: cannot be read: {}", path, std::strerror(errno)));
    done += static_cast<std::size_t>(got);
    if (done == bytes.size()) bytes.resize(2 * done);
  }
  bytes.resize(done);
  return bytes;
}

at::Tensor decode_image(std::span<const unsigned char> bytes, const std::string& name) {
  if (bytes.empty()) corrupt(name, "the file is empty");
  const auto starts_with = [&](std::initializer_list<unsigned char> magic) {
    return bytes.size() >= magic.size() && std::equal(magic.begin(), magic.end(), bytes.begin());
  };
  if (starts_with({0xFF, 0xD8, 0xFF})) return decode(jpeg::Reader(bytes), name, "JPEG");
  if (starts_with({0x89, 'P', 'N', 'G', '\r', '\n', 0x1A, '\n'})) return decode(png::Reader(bytes), name, "PNG");
  corrupt(name, "neither JPEG nor PNG, by its first bytes");
}

at::Tensor to_grey(const at::Tensor& image) {
  auto grey = at::empty({image.size(0), image.size(1), 1}, at::kByte);
  const auto* from = image.const_data_ptr<unsigned char>();
  auto* to = grey.mutable_data_ptr<unsigned char>();
  for (std::int64_t i = 0; i < grey.numel(); ++i, from += 3)
    to[i] = static_cast<unsigned char>((from[0] * 19595 + from[1] * 38470 + from[2] * 7471 + 0x8000) >> 16);
  return grey;
}

void write_png(const std::string& path, const at::Tensor& image) {
  TRIREME_CHECK(image.dim() == 3 && image.size(2) == 3 && image.scalar_type() == at::kByte && image.is_contiguous(),
                "a PNG is written from contiguous uint8 [H, W, 3]");
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "wbe"), std::fclose);
  if (!file) throw DataError(fmt::format("{}: cannot be written: {}", path, std::strerror(errno)));
  const bool written = png::write_rgb(file.get(), image.const_data_ptr<unsigned char>(), image.size(1), image.size(0));
  if (!written || std::fflush(file.get()) != 0) {
    const int number = errno;
    std::remove(path.c_str());
    throw DataError(fmt::format("{}: cannot be written: {}", path, std::strerror(number)));
  }
}

}  // namespace trireme::datasets
