#include "datasets/stored_images.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "core/base/error.h"

namespace trireme::datasets {
namespace {

namespace fs = std::filesystem;

constexpr std::uint32_t kIdxLabels = 0x0801, kIdxImages = 0x0803;  ///< unsigned bytes with one and with three dims

/// The whole file, decompressed if it is in gzip's format. @throws DataError
std::vector<unsigned char> read_gzip(const std::string& path) {
  const std::unique_ptr<gzFile_s, decltype(&gzclose)> file(gzopen(path.c_str(), "rb"), gzclose);
  if (!file) throw DataError(fmt::format("{}: cannot be opened: {}", path, std::strerror(errno)));
  std::vector<unsigned char> bytes;
  std::array<unsigned char, 1 << 16> chunk;
  for (int n = 0; (n = gzread(file.get(), chunk.data(), chunk.size())) != 0;) {
    int problem = Z_OK;
    if (n < 0) throw DataError(fmt::format("{}: cannot be decompressed: {}", path, gzerror(file.get(), &problem)));
    bytes.insert(bytes.end(), chunk.begin(), chunk.begin() + n);
  }
  int problem = Z_OK;
  gzerror(file.get(), &problem);
  if (problem == Z_BUF_ERROR) throw DataError(fmt::format("{}: the file is truncated", path));
  return bytes;
}

std::string with_or_without_gz(const std::string& path) {
  std::error_code error;
  if (fs::exists(path, error)) return path;
  if (fs::exists(path + ".gz", error)) return path + ".gz";
  throw DataError(fmt::format("{}: there is no such file, nor {}.gz", path, fs::path(path).filename().string()));
}

/// A file in the IDX format: a magic number, the sizes of the dims (big-endian), and unsigned bytes.
struct Idx {
  std::string path;
  std::vector<std::int64_t> sizes;
  std::vector<unsigned char> bytes;
  std::size_t begin;  ///< of the values in `bytes`
};

Idx read_idx(const std::string& path, std::uint32_t magic, const char* what) {
  Idx idx{path, {}, read_gzip(path), 0};
  const auto number = [&](std::size_t at) {
    std::uint32_t value = 0;
    for (std::size_t i = 0; i < 4; ++i) value = value << 8 | idx.bytes[at + i];
    return value;
  };
  if (idx.bytes.empty()) throw DataError(fmt::format("{}: the file is empty", path));
  const std::size_t dims = magic & 0xff;
  idx.begin = 4 * (1 + dims);
  if (idx.bytes.size() < idx.begin || number(0) != magic)
    throw DataError(fmt::format("{}: not an IDX file of {}: it does not begin with {:#010x}", path, what, magic));
  double count = 1;
  for (std::size_t d = 0; d < dims; ++d) {
    idx.sizes.push_back(number(4 * (1 + d)));
    count *= static_cast<double>(idx.sizes.back());
  }
  if (count == 0)
    throw DataError(fmt::format("{}: holds no {}: its sizes are {}", path, what, fmt::join(idx.sizes, " x ")));
  if (const auto values = idx.bytes.size() - idx.begin; static_cast<double>(values) != count)
    throw DataError(
        fmt::format("{}: the file has {} values, but its header says {:.0f}; it is damaged", path, values, count));
  return idx;
}

class StoredSource : public PixelSource {
 public:
  StoredSource(const StoredImages& images, std::int64_t first, std::int64_t step)
      : images_(images), first_(first), step_(step) {
    // A copy, so that the memory of the others is not kept.
    if (step > 1)
      images_.pixels = images.pixels.slice(0, first, std::nullopt, step).clone(at::MemoryFormat::Contiguous);
  }
  [[nodiscard]] std::int64_t size() const override { return static_cast<std::int64_t>(images_.labels.size()); }
  [[nodiscard]] std::int64_t channels() const override { return images_.pixels.size(3); }
  [[nodiscard]] std::int64_t label(std::int64_t index) const override {
    return images_.labels.at(static_cast<std::size_t>(index));
  }
  [[nodiscard]] DecodedImage load(std::int64_t index) const override {
    TRIREME_REQUIRE(index % step_ == first_,
                    "image {} is kept by another rank, because the data was opened with OpenContext::shard_data; set "
                    "LoadingOptions::shard_data too, so that the ranks exchange samples",
                    index);
    return {images_.pixels[index / step_]};
  }

 private:
  StoredImages images_;
  std::int64_t first_, step_;
};

}  // namespace

StoredImages read_mnist(const std::string& folder, const std::string& prefix) {
  const auto file = [&](const char* name) { return with_or_without_gz((fs::path(folder) / (prefix + name)).string()); };
  const auto images = read_idx(file("-images-idx3-ubyte"), kIdxImages, "images");
  const auto labels = read_idx(file("-labels-idx1-ubyte"), kIdxLabels, "labels");
  if (images.sizes[0] != labels.sizes[0])
    throw DataError(
        fmt::format("{}: {} images, but {} has {} labels", images.path, images.sizes[0], labels.path, labels.sizes[0]));
  StoredImages out;
  out.pixels = at::empty({images.sizes[0], images.sizes[1], images.sizes[2], 1}, at::kByte);
  std::copy(images.bytes.begin() + static_cast<std::ptrdiff_t>(images.begin), images.bytes.end(),
            out.pixels.mutable_data_ptr<unsigned char>());
  out.labels.assign(labels.bytes.begin() + static_cast<std::ptrdiff_t>(labels.begin), labels.bytes.end());
  out.labels_file = labels.path;
  return out;
}

void number_classes(StoredImages& images, const std::vector<std::int64_t>& numbers) {
  for (std::size_t i = 0; i < images.labels.size(); ++i) {
    const auto found = std::find(numbers.begin(), numbers.end(), images.labels[i]);
    if (found == numbers.end())
      throw DataError(fmt::format("{}: label {} of image {} is not {} to {}", images.labels_file, images.labels[i], i,
                                  numbers.front(), numbers.back()));
    images.labels[i] = found - numbers.begin();
  }
}

StoredImages part_of(const StoredImages& images, std::int64_t begin, std::int64_t end) {
  return {images.pixels.narrow(0, begin, end - begin),
          {images.labels.begin() + begin, images.labels.begin() + end},
          images.labels_file};
}

std::shared_ptr<PixelSource> stored_source(const StoredImages& images, std::int64_t first, std::int64_t step) {
  return std::make_shared<StoredSource>(images, first, step);
}

}  // namespace trireme::datasets
