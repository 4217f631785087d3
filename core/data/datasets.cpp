// open(): builds the three splits from [data]. Each source has its own file; this one only selects and checks them.
#include "core/data/datasets.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "core/base/error.h"
#include "core/base/random.h"
#include "core/base/text.h"
#include "core/comm/host_share.h"
#include "core/data/image_dataset.h"
#include "core/data/image_folder.h"
#include "core/data/leaves.h"
#include "core/data/tensor_dataset.h"

namespace trireme::data {
namespace {

constexpr Split kSplits[] = {Split::train, Split::validation, Split::test};

std::shared_ptr<Dataset>& split_of(Datasets& sets, Split split) {
  return split == Split::train ? sets.train : split == Split::validation ? sets.validation : sets.test;
}

[[noreturn]] void bad_option(const char* key, const std::string& what) {
  throw ConfigError(fmt::format("data.{}: {}", key, what));
}

TransformOptions transform_options(const config::DataOptions& options, std::int64_t default_size) {
  TransformOptions out;
  out.size = options.image_size.value_or(default_size);
  if (out.size < 1) bad_option("image_size", fmt::format("{} pixels; it must be at least 1", out.size));
  if (options.mean.size() != 3)
    bad_option("mean", fmt::format("{} numbers; give 3 (red, green, blue)", options.mean.size()));
  if (options.std.size() != 3)
    bad_option("std", fmt::format("{} numbers; give 3 (red, green, blue)", options.std.size()));
  for (const double value : options.std)
    if (!(value > 0)) bad_option("std", fmt::format("{} is not a valid divisor; give numbers above 0", value));
  std::copy_n(options.mean.begin(), 3, out.mean.begin());
  std::copy_n(options.std.begin(), 3, out.std.begin());
  const auto& scale = options.crop_scale;
  if (scale.size() != 2 || !(scale[0] > 0) || !(scale[0] <= scale[1]) || !(scale[1] <= 1))
    bad_option("crop_scale", "give two numbers, 0 < low <= high <= 1: fractions of the image's area");
  out.flip = options.flip;
  out.crop = options.random_resized_crop;
  out.crop_low = scale[0];
  out.crop_high = scale[1];
  return out;
}

/// Only the train split is augmented; the other splits can be fully preprocessed and cached.
TransformOptions for_split(TransformOptions transform, Split split) {
  if (split != Split::train) transform.flip = transform.crop = false;
  return transform;
}

Datasets from_sources(const std::map<Split, std::shared_ptr<PixelSource>>& sources, std::vector<std::string> classes,
                      const TransformOptions& transform, const config::DataOptions& options, std::uint64_t seed,
                      const Log& log) {
  Datasets out;
  const auto budget = std::make_shared<CacheBudget>(static_cast<std::int64_t>(options.cache_mb * 1024 * 1024));
  for (const auto& [split, source] : sources)
    split_of(out, split) = std::make_shared<ImageDataset>(source, for_split(transform, split), seed, budget,
                                                          options.on_bad_sample == "skip", log);
  out.info.spec = out.train->spec();
  out.info.spec.classes = static_cast<std::int64_t>(classes.size());
  out.info.spec.class_names = std::move(classes);
  return out;
}

/// Depends on labels and file names only, not on the path of the folder.
std::string digest_of(const FolderSplit& split) {
  std::uint64_t sum = split.files.size();
  for (std::size_t i = 0; i < split.files.size(); ++i)
    sum = random::mix(sum + static_cast<std::uint64_t>(split.labels[i]),
                      random::hash(std::filesystem::path(split.files[i]).filename().string()));
  return fmt::format("{:016x}", sum);
}

Datasets open_folder(const config::DataOptions& options, std::int64_t default_size, std::uint64_t seed, const Log& log,
                     const comm::LaunchInfo& launch) {
  const auto transform = transform_options(options, default_size);
  auto listing = parse_listing(comm::share_on_host(launch, "list " + options.path, [&] {
    return text_of(list_image_folder(options.path, log, options.on_bad_sample == "skip"));
  }));
  auto digest = digest_of(listing.splits.at(Split::train));
  std::map<Split, std::shared_ptr<PixelSource>> sources;
  for (auto& [split, files] : listing.splits) sources[split] = folder_source(std::move(files));
  auto out = from_sources(sources, std::move(listing.classes), transform, options, seed, log);
  out.info.digest = std::move(digest);
  return out;
}

Datasets open_leaves(const config::DataOptions& options, std::uint64_t seed, const Log& log,
                     const comm::LaunchInfo& launch) {
  if (!options.path.empty()) return open_folder(options, kLeafPixels, seed, log, launch);
  const auto transform = transform_options(options, kLeafPixels);
  std::map<Split, std::shared_ptr<PixelSource>> sources;
  for (const auto split : kSplits)
    sources[split] = leaf_source(split, options.images, transform.size, static_cast<std::uint64_t>(options.leaf_seed));
  return from_sources(sources, leaf_classes(), transform, options, seed, log);
}

/// Settings that only an image uses. @throws ConfigError
void check_has_image(const config::DataOptions& options, const std::string& file) {
  const config::DataOptions defaults;
  const auto refuse = [&](const char* key, bool set) {
    if (set) bad_option(key, fmt::format("has no effect: {} holds no {}; remove it", file, kPixelValues));
  };
  refuse("image_size", options.image_size.has_value());
  refuse("flip", options.flip);
  refuse("random_resized_crop", options.random_resized_crop);
}

/// The names of the classes: numbers, because a file of tensors has no others. None for labels of tokens.
std::vector<std::string> numbered_classes(const nn::DataSpec& spec) {
  std::vector<std::string> names;
  if (spec.targets.front().shape.empty())
    for (std::int64_t label = 0; label < spec.classes; ++label) names.push_back(std::to_string(label));
  return names;
}

/// The splits must have the same tensors; lengths may differ.
void check_same_tensors(const nn::DataSpec& spec, const nn::DataSpec& train, const std::string& file) {
  const auto kinds = [](const nn::DataSpec& of) {
    std::vector<std::string> out;
    for (const auto* tensors : {&of.inputs, &of.targets})
      for (const auto& tensor : *tensors)
        out.push_back(fmt::format("{} ({}, {}-dimensional)", tensor.name, c10::getDtypeNames(tensor.dtype).first,
                                  tensor.shape.size() + 1));
    return text::join(out);
  };
  if (kinds(spec) != kinds(train))
    throw DataError(fmt::format("{}: holds {}, but the train split has {}", file, kinds(spec), kinds(train)));
}

Datasets open_tensors(const config::DataOptions& options, std::uint64_t seed, const Log& log) {
  const auto transform = transform_options(options, 1);
  if (options.path.empty())
    throw DataError("data.path is empty: set it to a folder with train.safetensors and validation.safetensors");
  Datasets out;
  out.info.normalised = false;
  std::int64_t classes = 0;
  for (const auto split : kSplits) {
    const auto file = (std::filesystem::path(options.path) / (std::string(name_of(split)) + ".safetensors")).string();
    if (split == Split::test && !std::filesystem::exists(file)) continue;
    const auto set =
        std::make_shared<TensorDataset>(file, for_split(transform, split), seed, options.on_bad_sample == "skip", log);
    if (split == Split::train) out.info.spec = set->spec();
    check_same_tensors(set->spec(), out.info.spec, file);
    if (const auto size = set->image_size()) {
      const auto wanted = options.image_size.value_or(out.info.spec.input(kPixelValues)->shape[1]);
      if (*size != wanted)
        throw DataError(fmt::format("{}: images of {} x {} pixels, but {} says {}", file, *size, *size,
                                    options.image_size ? "data.image_size" : "the train split", wanted));
    } else {
      check_has_image(options, file);
    }
    out.info.normalised = out.info.normalised || set->normalised();
    classes = std::max(classes, set->spec().classes);
    out.info.spec.ignored_labels = out.info.spec.ignored_labels || set->spec().ignored_labels;
    split_of(out, split) = set;
  }
  out.info.spec.classes = classes;
  out.info.spec.class_names = numbered_classes(out.info.spec);
  return out;
}

}  // namespace

const char* name_of(Split split) {
  return split == Split::train ? "train" : split == Split::validation ? "validation" : "test";
}

Datasets open(const config::DataOptions& options, std::uint64_t seed, const Log& log, const comm::LaunchInfo& launch) {
  if (options.on_bad_sample != "error" && options.on_bad_sample != "skip")
    bad_option("on_bad_sample", fmt::format("\"{}\" is neither \"error\" nor \"skip\"", options.on_bad_sample));
  if (options.name == "image_folder") return open_folder(options, 224, seed, log, launch);
  if (options.name == "leaves") return open_leaves(options, seed, log, launch);
  if (options.name == "tensors") return open_tensors(options, seed, log);
  bad_option("name", fmt::format("no data set \"{}\" (known: image_folder, leaves, tensors)", options.name));
}

}  // namespace trireme::data
