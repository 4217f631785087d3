#include "datasets/image.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string_view>
#include <utility>

#include "core/base/error.h"
#include "core/base/mapped_bytes.h"
#include "datasets/codecs/exif.h"
#include "datasets/codecs/image_reader.h"

namespace trireme::datasets {
namespace {

[[noreturn]] void corrupt(const std::string& name, const std::string& what) {
  throw DataError(fmt::format("{}: {}", name, what));
}

struct Format {
  const char* name;
  std::vector<std::string_view> endings;
  std::vector<std::string_view> beginnings;  ///< of its files; '?' stands for any byte
  std::unique_ptr<ImageReader> (*reader)(Bytes bytes);
};
const std::vector<Format>& formats() {
  using namespace std::string_view_literals;
  static const std::vector<Format> all{
      {"JPEG", {".jpg", ".jpeg"}, {"\xFF\xD8\xFF"sv}, jpeg_reader},
      {"PNG", {".png"}, {"\x89PNG\r\n\x1A\n"sv}, png_reader},
      {"WebP", {".webp"}, {"RIFF????WEBP"sv}, webp_reader},
      {"BMP", {".bmp"}, {"BM"sv}, bmp_reader},
      {"GIF", {".gif"}, {"GIF87a"sv, "GIF89a"sv}, gif_reader},
      {"TIFF", {".tif", ".tiff"}, {"II*\0"sv, "MM\0*"sv, "II+\0"sv, "MM\0+"sv}, tiff_reader}};
  return all;
}

const Format* format_of(Bytes bytes) {
  const auto same = [](char wanted, unsigned char byte) {
    return wanted == '?' || byte == static_cast<unsigned char>(wanted);
  };
  const auto begins = [&](std::string_view beginning) {
    return bytes.size() >= beginning.size() && std::equal(beginning.begin(), beginning.end(), bytes.begin(), same);
  };
  for (const auto& format : formats())
    if (std::any_of(format.beginnings.begin(), format.beginnings.end(), begins)) return &format;
  return nullptr;
}

/// [H, W, 4] to [H, W, 3]: over the background, rounded as Pillow's paste() does, or without alpha.
at::Tensor without_alpha(const at::Tensor& rgba, const Decoding& how) {
  auto rgb = at::empty({rgba.size(0), rgba.size(1), 3}, at::kByte);
  const auto* from = rgba.const_data_ptr<unsigned char>();
  auto* to = rgb.mutable_data_ptr<unsigned char>();
  for (std::int64_t i = 0; i < rgba.size(0) * rgba.size(1); ++i, from += 4, to += 3)
    for (std::size_t c = 0; c < 3; ++c) {
      if (!how.background) {
        to[c] = from[c];
        continue;
      }
      const unsigned sum = from[c] * from[3] + (*how.background)[c] * (255U - from[3]) + 128;
      to[c] = static_cast<unsigned char>((sum + (sum >> 8)) >> 8);
    }
  return rgb;
}

}  // namespace

std::vector<unsigned char> read_bytes(const std::string& path, const std::function<void(std::uintmax_t bytes)>& check) {
  const auto [file, size] = open_regular<DataError>(path);
  if (check) check(size);
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

const char* file_problem(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) {
    if (errno != ENOENT) return std::strerror(errno);
    return ::lstat(path.c_str(), &status) == 0 ? "a link to a file that does not exist" : "no such file";
  }
  return S_ISDIR(status.st_mode)    ? kIsFolder
         : !S_ISREG(status.st_mode) ? "not a regular file"
         : status.st_size == 0      ? "the file is empty"
                                    : nullptr;
}

bool has_image_ending(const std::string& name) {
  auto ending = std::filesystem::path(name).extension().string();
  std::transform(ending.begin(), ending.end(), ending.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return std::any_of(formats().begin(), formats().end(), [&](const Format& format) {
    return std::find(format.endings.begin(), format.endings.end(), ending) != format.endings.end();
  });
}

std::string image_endings() {
  std::vector<std::string_view> all;
  for (const auto& format : formats()) all.insert(all.end(), format.endings.begin(), format.endings.end());
  return fmt::format("{}", fmt::join(all, ", "));
}

DecodedImage decode_image(Bytes bytes, const std::string& name, const Decoding& how) {
  if (bytes.empty()) corrupt(name, "the file is empty");
  const auto* format = format_of(bytes);
  if (format == nullptr) {
    std::vector<const char*> names;
    for (const auto& known : formats()) names.push_back(known.name);
    corrupt(name, fmt::format("no image, by its first bytes: none of {}", fmt::join(names, ", ")));
  }
  const auto reader = format->reader(bytes);
  if (!reader->read_header())
    corrupt(name, fmt::format("not a {} that can be decoded ({})", format->name, reader->error()));
  const auto width = reader->width(), height = reader->height();
  if (height < 1 || width < 1) corrupt(name, fmt::format("its header says {} x {} pixels", width, height));
  if (height > how.most_pixels / width)
    corrupt(name, fmt::format("its header says {} x {} pixels, which are more than data.max_pixels = {}", width, height,
                              how.most_pixels));
  auto pixels = at::empty({height, width, reader->has_alpha() ? 4 : 3}, at::kByte);
  if (!reader->read(pixels.mutable_data_ptr<unsigned char>()))
    corrupt(name, fmt::format("damaged {} ({})", format->name, reader->error()));
  if (reader->has_alpha()) pixels = without_alpha(pixels, how);
  const auto orientation = reader->orientation();
  const bool is_tiff = format->reader == tiff_reader;
  if (orientation != kUpright && (how.turn || is_tiff)) pixels = turn_upright(pixels, orientation);
  return {std::move(pixels), orientation != kUpright && !is_tiff};
}

void check_bytes(std::uintmax_t bytes, const std::string& name, const Decoding& how) {
  const auto most = 8 * static_cast<std::uintmax_t>(how.most_pixels) + (std::uintmax_t{64} << 20);
  if (bytes > most)
    corrupt(name, fmt::format("has {} bytes, more than the {} of an image of data.max_pixels = {}", bytes, most,
                              how.most_pixels));
}

DecodedImage decode_file(const std::string& path, const Decoding& how) {
  return decode_image(read_bytes(path, [&](std::uintmax_t bytes) { check_bytes(bytes, path, how); }), path, how);
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
  const bool written = write_png(file.get(), image.const_data_ptr<unsigned char>(), image.size(1), image.size(0));
  if (!written || std::fflush(file.get()) != 0) {
    const int number = errno;
    std::remove(path.c_str());
    throw DataError(fmt::format("{}: cannot be written: {}", path, std::strerror(number)));
  }
}

}  // namespace trireme::datasets
