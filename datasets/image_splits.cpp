#include "datasets/image_splits.h"

#include <fmt/format.h>

#include <utility>

#include "datasets/image_dataset.h"
#include "datasets/image_options.h"
#include "datasets/preprocessor.h"

namespace trireme::datasets {
namespace {

constexpr double kCacheMb = 512, kUnlimited = 1e9;

}  // namespace

data::Datasets image_splits(const std::map<data::Split, std::shared_ptr<PixelSource>>& sources,
                            std::vector<std::string> classes, const ImageOptions& options, std::int64_t default_size,
                            std::optional<double> cache_mb, const data::OpenContext& context) {
  data::Datasets out;
  const double mebibytes = cache_mb.value_or(context.shard_data && context.launch.size > 1 ? kUnlimited : kCacheMb);
  const auto budget = std::make_shared<CacheBudget>(static_cast<std::int64_t>(mebibytes * 1024 * 1024));
  for (const auto& [split, source] : sources)
    out.of(split) = std::make_shared<ImageDataset>(source, transform_of(options, default_size, split), context.seed,
                                                   budget, context.skip_bad_samples, context.log);
  out.info.spec = out.train->spec();
  out.info.spec.classes = static_cast<std::int64_t>(classes.size());
  out.info.spec.class_names = std::move(classes);
  const auto size = options.image_size.value_or(default_size);
  out.info.about =
      size.is_square() ? fmt::format("{} px", size.height) : fmt::format("{} x {} px", size.height, size.width);
  out.info.files["preprocessor_config.json"] = preprocessor_config(options, size);
  return out;
}

}  // namespace trireme::datasets
