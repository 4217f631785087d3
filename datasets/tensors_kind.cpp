// The data set "tensors": a safetensors file for each split.
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <memory>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/data/class_names.h"
#include "datasets/datasets.h"
#include "datasets/folder_entries.h"
#include "datasets/image_options.h"
#include "datasets/tensor_dataset.h"

namespace trireme::datasets {
namespace {

const Fields<TensorsOptions>& tensors_fields() {
  static const auto table = [] {
    Fields<TensorsOptions> rows("data",
                                "Files train.safetensors, validation.safetensors and, if there is a test split, "
                                "test.safetensors, with labels and the inputs of the model, such as pixel_values. The "
                                "keys of images apply to pixel_values.");
    rows.with("name", "tensors");
    rows.add("path", &TensorsOptions::path, "The folder of the files; required.", {.path = true});
    add_image_fields(rows, std::nullopt);
    return require_path(rows);
  }();
  return table;
}

[[noreturn]] void has_no_effect(const data::OpenContext& context, const char* key, const std::string& why) {
  config::fail(context.section, key, fmt::format("has no effect: {}; remove it", why));
}

/// Settings that only an image uses. @throws ConfigError
void check_has_image(const TensorsOptions& options, const std::string& file, const data::OpenContext& context) {
  const auto refuse = [&](const char* key, bool set) {
    if (set) has_no_effect(context, key, fmt::format("{} holds no {}", file, kPixelValues));
  };
  refuse("image_size", options.image_size.has_value());
  refuse("mean", options.mean.has_value());
  refuse("std", options.std.has_value());
  refuse("flip", options.flip);
  refuse("random_resized_crop", options.random_resized_crop);
  refuse("rand_augment", options.rand_augment > 0);
  refuse("random_erasing", options.random_erasing > 0);
  refuse("mixup", options.mixup > 0);
  refuse("cutmix", options.cutmix > 0);
}

void check_size(const TensorsOptions& options, const nn::ImageSize& size, const nn::ImageSize& of_train,
                const std::string& file) {
  const auto wanted = options.image_size.value_or(of_train);
  if (size != wanted)
    throw DataError(fmt::format("{}: images of {} x {} pixels, but {} says {}", file, size.height, size.width,
                                options.image_size ? "data.image_size" : "the train split", wanted.text()));
}

/// The names of the classes: numbers, because a file of tensors has no others. None for labels of tokens.
std::vector<std::string> numbered_classes(const nn::DataSpec& spec) {
  if (!spec.targets.front().shape.empty()) return {};
  return data::numbered_names(static_cast<std::size_t>(spec.classes));
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

/// @pre spec.input(kPixelValues) is [3, H, W]
nn::ImageSize size_in(const nn::DataSpec& spec) {
  const auto& shape = spec.input(kPixelValues)->shape;
  return {shape[1], shape[2]};
}

std::string file_of(const TensorsOptions& options, data::Split split) {
  const auto usual = std::filesystem::path(options.path) / (std::string(data::name_of(split)) + ".safetensors");
  return find_split(options.path, split, {".safetensors"}, "remove one").value_or(usual.string());
}

data::Datasets open_tensors(TensorsOptions& options, const data::OpenContext& context) {
  if (options.resize_shorter) has_no_effect(context, "resize_shorter", "pixel_values are used in the size of the file");
  // Images that are not uint8 were prepared by the user, in an unknown way.
  const bool normalised = TensorDataset::has_raw_images(file_of(options, data::Split::train));
  auto filled = options;
  for (auto* values : {&filled.mean, &filled.std})
    if (!*values) *values = kUsualNormalisation.mean;  // std is the same
  if (!normalised)  // values that change nothing may be in the configuration of an older run
    for (auto* values : {&options.mean, &options.std})
      if (*values == kUsualNormalisation.mean) values->reset();
  if (normalised) {
    fill_normalisation(options, context);
    filled = options;
  }
  data::Datasets out;
  std::int64_t classes = 0;
  for (const auto split : data::kSplits) {
    const auto file = file_of(options, split);
    if (split == data::Split::test && !std::filesystem::exists(file)) continue;
    const auto set = std::make_shared<TensorDataset>(file, transform_of(filled, 1, split), context.seed,
                                                     context.skip_bad_samples, context.log);
    if (split == data::Split::train) out.info.spec = set->spec();
    check_same_tensors(set->spec(), out.info.spec, file);
    if (const auto size = set->image_size())
      check_size(options, *size, size_in(out.info.spec), file);
    else
      check_has_image(options, file, context);
    classes = std::max(classes, set->spec().classes);
    out.info.spec.ignored_labels = out.info.spec.ignored_labels || set->spec().ignored_labels;
    out.of(split) = set;
  }
  const auto unused = fmt::format("the {} in {} are not uint8 and are used as they are", kPixelValues, options.path);
  if (!normalised && options.mean) has_no_effect(context, "mean", unused);
  if (!normalised && options.std) has_no_effect(context, "std", unused);
  if (!normalised && options.rand_augment > 0) has_no_effect(context, "rand_augment", unused);
  check_mixing(options, out.info.spec.targets.front(), options.path, context);
  out.info.spec.classes = classes;
  out.info.spec.class_names = numbered_classes(out.info.spec);
  out.info.source = options.path;
  if (normalised) out.info.files["preprocessor_config.json"] = preprocessor_config(options, size_in(out.info.spec));
  return out;
}

}  // namespace

data::DatasetFactory tensors(TensorsOptions options) { return {tensors_fields(), std::move(options), open_tensors}; }

}  // namespace trireme::datasets
