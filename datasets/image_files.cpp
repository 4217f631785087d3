#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "core/nn/layers/index_checks.h"
#include "datasets/folder_entries.h"
#include "datasets/image.h"
#include "datasets/image_dataset.h"
#include "datasets/image_folder.h"
#include "datasets/image_options.h"

namespace trireme::datasets {
namespace {

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
    auto image = decode_file(file, decoding_);
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
  auto files = named_files(paths, has_image_ending, fmt::format("image ({})", image_endings()));
  data::FileSamples out{.columns = {"image"}, .shown = {}, .data = nullptr};
  for (const auto& file : files) out.shown.push_back({file});
  out.data = std::make_shared<ImageDataset>(
      std::make_shared<NamedFilesSource>(std::move(files), static_cast<std::int64_t>(usual.mean.size()), decoding),
      transform_of(options, default_size, data::Split::validation), context.seed,
      std::make_shared<CacheBudget>(/*bytes=*/0), context.skip_bad_samples, context.log,
      /*alone=*/true);
  return out;
}

}  // namespace trireme::datasets
