#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <utility>

#include "core/base/error.h"
#include "core/nn/layers/index_checks.h"
#include "datasets/folder_entries.h"
#include "datasets/image.h"
#include "datasets/image_dataset.h"
#include "datasets/image_folder.h"
#include "datasets/image_options.h"

namespace trireme::datasets {
namespace {

namespace fs = std::filesystem;

/// The images below a folder, in order. Links to folders are followed, as in a data set.
std::vector<std::string> images_below(const std::string& folder) {
  std::vector<std::string> files;
  std::error_code error;
  fs::recursive_directory_iterator it(folder, fs::directory_options::follow_directory_symlink, error);
  for (const fs::recursive_directory_iterator end; !error && it != end; it.increment(error)) {
    const auto name = it->path().filename().string();
    std::error_code none;
    const bool is_folder = it->is_directory(none);
    if (is_hidden(name)) {
      if (is_folder) it.disable_recursion_pending();
    } else if (!is_folder && has_image_ending(name)) {
      files.push_back(it->path().string());
    }
  }
  if (error) throw DataError(fmt::format("{}: cannot be read: {}", folder, error.message()));
  if (files.empty()) throw DataError(fmt::format("{}: no image ({}) in this folder", folder, image_endings()));
  std::sort(files.begin(), files.end());
  return files;
}

/// Files that were named one by one, without labels. `channels`: 3, or 1 for grey images.
class NamedFilesSource : public PixelSource {
 public:
  NamedFilesSource(std::vector<std::string> files, std::int64_t channels, const Decoding& decoding)
      : files_(std::move(files)), channels_(channels), decoding_(decoding) {}
  [[nodiscard]] std::int64_t size() const override { return static_cast<std::int64_t>(files_.size()); }
  [[nodiscard]] std::int64_t label(std::int64_t /*index*/) const override { return nn::kNoLabel; }
  [[nodiscard]] std::int64_t channels() const override { return channels_; }
  [[nodiscard]] DecodedImage load(std::int64_t index) const override {
    const auto& file = files_[static_cast<std::size_t>(index)];
    auto image = decode_image(read_bytes(file), file, decoding_);
    if (channels_ == 1) image.pixels = to_grey(image.pixels);
    return image;
  }

 private:
  std::vector<std::string> files_;
  std::int64_t channels_;
  Decoding decoding_;
};

}  // namespace

data::FileSamples open_image_files(ImageOptions& options, const Normalisation& usual, std::int64_t default_size,
                                   const data::OpenContext& context, const std::vector<std::string>& paths,
                                   const Decoding& decoding) {
  fill_normalisation(options, context, usual);
  data::FileSamples out;
  for (const auto& path : paths) {
    std::error_code none;
    if (fs::is_directory(path, none)) {
      auto found = images_below(path);
      out.files.insert(out.files.end(), found.begin(), found.end());
    } else {
      out.files.push_back(path);
    }
  }
  out.data = std::make_shared<ImageDataset>(
      std::make_shared<NamedFilesSource>(out.files, static_cast<std::int64_t>(usual.mean.size()), decoding),
      transform_of(options, default_size, data::Split::validation), context.seed,
      std::make_shared<CacheBudget>(/*bytes=*/0), context.skip_bad_samples, context.log,
      /*alone=*/true);
  return out;
}

}  // namespace trireme::datasets
