// The kinds of data sets whose samples are images in files, or drawn: image_folder and leaves.

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "datasets/datasets.h"
#include "datasets/held_out.h"
#include "datasets/image_folder.h"
#include "datasets/image_options.h"
#include "datasets/leaves.h"

namespace trireme::datasets {
namespace {

constexpr std::int64_t kFolderPixels = 224;

template <class T>
Fields<T>& add_folder_fields(Fields<T>& table, const std::string& path_text, std::int64_t default_size) {
  table.add("path", &FolderOptions::path, path_text, {.path = true});
  add_image_fields(table, default_size);
  add_held_out_fields(table, "images");
  return add_decoding_fields(table);
}

const Fields<FolderOptions>& folder_fields() {
  static const auto table = [] {
    Fields<FolderOptions> rows("data", "Folders train, validation and test, each with one folder of images per class.");
    rows.with("name", "image_folder");
    add_folder_fields(rows, "The folder of the data set; required.", kFolderPixels);
    return require_path(rows);
  }();
  return table;
}

const Fields<LeavesOptions>& leaves_fields() {
  using O = LeavesOptions;
  static const auto table = [] {
    Fields<O> rows("data", "Generated images of leaves, or a folder of them.");
    rows.with("name", "leaves");
    add_folder_fields(rows, "A folder that `trireme data leaves` has written; empty generates the leaves in memory.",
                      kLeafPixels);
    return rows
        .add("images", &O::images, "Number of generated images, in all splits together.",
             {.min = 30, .max = 10'000'000})
        .add("leaf_seed", &O::leaf_seed, "Seed of the generated leaves.", {.min = 0})
        .rule([](const O& o, const CheckedSection& section) {
          const auto refuse = [&](const char* key, bool changed) {
            if (!o.path.empty() && changed)
              section.fail(key,
                           "has no effect, because data.path names leaves that exist already; remove one of the two");
          };
          refuse("images", o.images != O{}.images);
          refuse("leaf_seed", o.leaf_seed != O{}.leaf_seed);
          if (!o.path.empty()) return;
          for (const auto& [key, set] : {std::pair{"exif", o.exif != O{}.exif},
                                         {"background", o.background.has_value()},
                                         {"validation_share", o.validation_share.has_value()},
                                         {"folds", o.folds.has_value()},
                                         {"max_pixels", o.max_pixels != O{}.max_pixels}})
            if (set) section.fail(key, "has no effect on leaves that are generated in memory; remove it");
          if (!o.image_size) return;
          if (const auto side = o.image_size->longer(); side < kLeastLeafPixels || side > kMostLeafPixels)
            section.fail("image_size",
                         fmt::format("the longer side of generated leaves must have {} to {} pixels; choose another "
                                     "size, or name a folder of images in data.path",
                                     kLeastLeafPixels, kMostLeafPixels));
        });
  }();
  return table;
}

/// Makes the validation split of a folder that has none, and lets `digest` say so. @throws ConfigError, DataError
void take_validation(PixelSources& sources, const std::vector<std::string>& classes, const FolderOptions& options,
                     const data::OpenContext& context, std::string& digest) {
  if (sources.contains(data::Split::validation)) {
    refuse_held_out(options, fmt::format("{} has a validation split", options.path), context);
    return;
  }
  if (options.taken_by() == nullptr)
    throw DataError(fmt::format(
        "{}/validation: the validation split is missing; create it, with one subfolder of images per class, "
        "or set data.validation_share, such as 0.1, to take it from the training images",
        options.path));
  hold_out_images(sources, options, options.path, classes, context.log, digest);
}

data::Datasets open_folder(FolderOptions& options, std::int64_t default_size, const data::OpenContext& context) {
  fill_normalisation(options, context);
  const auto index = open_folder_index(options.path, context.skip_bad_samples, context.log, context.launch).index;
  PixelSources sources;
  for (const auto split : data::kSplits)
    if (index->size(split) > 0) sources[split] = folder_source(index, split, options.path, decoding_of(options));
  auto digest = index->digest();
  auto classes = index->classes();
  take_validation(sources, classes, options, context, digest);
  auto out = image_splits(sources, std::move(classes), options, default_size, options.cache_mb, context);
  out.info.source = options.path;
  out.info.digest = std::move(digest);
  return out;
}

data::Datasets open_leaves(LeavesOptions& options, const data::OpenContext& context) {
  if (!options.path.empty()) return open_folder(options, kLeafPixels, context);
  if (context.skip_bad_samples)
    throw ConfigError("data.on_bad_sample: has no effect with leaves that are generated in memory; remove it");
  fill_normalisation(options, context);
  // Leaves are drawn as squares; the transform gives them another height or width.
  const auto size = nn::ImageSize(options.image_size.value_or(kLeafPixels)).longer();
  PixelSources sources;
  for (const auto split : data::kSplits)
    sources[split] = leaf_source(split, options.images, size, static_cast<std::uint64_t>(options.leaf_seed));
  auto out = image_splits(sources, leaf_classes(), options, kLeafPixels, options.cache_mb, context);
  out.info.source = "leaves";
  return out;
}

template <std::int64_t kDefaultSize>
data::FileSamples files_of(FolderOptions& options, const data::OpenContext& context,
                           const std::vector<std::string>& paths) {
  return open_image_files(options, kUsualNormalisation, kDefaultSize, context, paths, decoding_of(options));
}

}  // namespace

data::DatasetFactory image_folder(FolderOptions options) {
  return {folder_fields(), std::move(options),
          [](FolderOptions& own, const data::OpenContext& context) { return open_folder(own, kFolderPixels, context); },
          files_of<kFolderPixels>};
}

data::DatasetFactory leaves(LeavesOptions options) {
  return {leaves_fields(), std::move(options), open_leaves, files_of<kLeafPixels>};
}

}  // namespace trireme::datasets
