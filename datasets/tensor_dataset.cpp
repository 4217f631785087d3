#include "datasets/tensor_dataset.h"

#include <ATen/ops/_upsample_bilinear2d_aa.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/isfinite.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/base/error.h"
#include "core/nn/layers/index_checks.h"

namespace trireme::datasets {
namespace {

constexpr std::int64_t kMaxClasses = 1'000'000;  // a file with more is assumed to hold something else

SafeTensorsFile open_file(const std::string& path) {
  try {
    SafeTensorsFile file(path);
    static_cast<void>(file.entry(nn::kLabels));
    return file;
  } catch (const FormatError& error) {  // reads of entries that were found do not throw it
    throw DataError(fmt::format(
        "{} (a tensors data set has labels [N, ...] and inputs, such as pixel_values [N, 3, H, W])", error.what()));
  }
}

std::string dtype_name(at::ScalarType type) { return c10::getDtypeNames(type).first; }

/// The dtype of a sample's tensor; unset for dtypes that are not read.
std::optional<at::ScalarType> sample_type(at::ScalarType stored) {
  if (stored == at::kDouble || stored == at::kBool) return stored;
  if (stored == at::kFloat || stored == at::kHalf || stored == at::kBFloat16) return at::kFloat;
  if (at::isIntegralType(stored, /*includeBool=*/false)) return at::kLong;
  return std::nullopt;
}

bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

TensorDataset::TensorDataset(const std::string& file, TransformOptions transform, std::uint64_t seed, bool skip_bad,
                             const Log& log)
    : file_(open_file(file)), transform_(transform), bad_(skip_bad, log) {
  spec_.ignored_labels = false;  // until one is found
  const auto& labels = file_.entry(nn::kLabels);
  const auto type = sample_type(labels.dtype);
  if (!type || labels.shape.empty())
    throw DataError(fmt::format("{}: labels is {} [{}]; it must be [N, ...], of integers or floating point", file,
                                dtype_name(labels.dtype), fmt::join(labels.shape, ", ")));
  size_ = labels.shape.front();
  if (size_ == 0) throw DataError(fmt::format("{}: holds no samples", file));
  spec_.targets.push_back({nn::kLabels, *type, {labels.shape.begin() + 1, labels.shape.end()}});
  for (const auto& [name, entry] : file_.tensors())
    if (name != nn::kLabels) add_input(name);
  if (spec_.inputs.empty())
    throw DataError(fmt::format("{}: holds labels, but no inputs, such as pixel_values [N, 3, H, W]", file));
  if (*type == at::kLong) count_classes();
  batch_transform_ = std::make_unique<BatchTransform>(transform_, seed);
}

void TensorDataset::add_input(const std::string& name) {
  const auto& entry = file_.entry(name);
  const auto type = sample_type(entry.dtype);
  if (!type)
    throw DataError(fmt::format("{}: {} is {}; an input holds integers, booleans or floating point", file_.path(), name,
                                dtype_name(entry.dtype)));
  if (entry.shape.empty() || entry.shape.front() != size_)
    throw DataError(fmt::format("{}: {} is [{}], but there are {} labels; each sample needs both", file_.path(), name,
                                fmt::join(entry.shape, ", "), size_));
  spec_.inputs.push_back({name, *type, {entry.shape.begin() + 1, entry.shape.end()}});
  if (name != kPixelValues) return;
  check_pixels();
  transform_.size = {entry.shape[2], entry.shape[3]};
  if (normalised()) spec_.inputs.back().dtype = at::kFloat;
}

void TensorDataset::check_pixels() const {
  const auto& [dtype, shape, begin, end] = file_.entry(kPixelValues);
  if (!at::isFloatingType(dtype) && dtype != at::kByte)
    throw DataError(fmt::format("{}: pixel_values is {}; it must be float64, float32, float16, bfloat16 or uint8",
                                file_.path(), dtype_name(dtype)));
  if (shape.size() != 4 || shape[1] != 3 || shape[2] < 1 || shape[3] < 1)
    throw DataError(
        fmt::format("{}: pixel_values is [{}]; it must be [N, 3, H, W]", file_.path(), fmt::join(shape, ", ")));
}

std::optional<nn::ImageSize> TensorDataset::image_size() const {
  if (spec_.input(kPixelValues) == nullptr) return std::nullopt;
  return transform_.size;
}

bool TensorDataset::has_raw_images(const std::string& file) {
  const auto opened = open_file(file);
  return opened.tensors().contains(kPixelValues) && opened.entry(kPixelValues).dtype == at::kByte;
}

std::vector<nn::SampleTensor> TensorDataset::combined_targets() const { return batch_transform_->combined_targets(); }

bool TensorDataset::normalised() const {
  return file_.tensors().contains(kPixelValues) && file_.entry(kPixelValues).dtype == at::kByte;
}

/// Checks all labels, in parts, because labels of tokens can be large.
void TensorDataset::count_classes() {
  constexpr std::int64_t kPart = 1 << 20;
  const auto& entry = file_.entry(nn::kLabels);
  const auto bytes = file_.bytes(nn::kLabels);
  const auto each = c10::elementSize(entry.dtype);
  for (std::int64_t from = 0; from < entry.numel(); from += kPart) {
    auto part = at::empty({std::min(kPart, entry.numel() - from)}, entry.dtype);
    std::memcpy(part.mutable_data_ptr(), bytes.data() + static_cast<std::size_t>(from) * each, part.nbytes());
    part = part.to(at::kLong);
    const auto* values = part.const_data_ptr<std::int64_t>();
    for (std::int64_t i = 0; i < part.numel(); ++i) {
      if (values[i] == nn::kNoLabel) {
        spec_.ignored_labels = true;
        continue;
      }
      if (values[i] < 0 || values[i] >= kMaxClasses)
        throw DataError(fmt::format(
            "{}: label {} of sample {} is out of range; labels are 0, 1, ... classes - 1 (at most {}), or {} for one "
            "that does not count",
            file_.path(), values[i], (from + i) / (entry.numel() / size_), kMaxClasses - 1, nn::kNoLabel));
      spec_.classes = std::max(spec_.classes, values[i] + 1);
    }
  }
}

data::RowSpec TensorDataset::row_spec(const std::vector<std::string>& inputs, bool augment) const {
  data::RowSpec spec{.targets = spec_.targets};
  bool pixels = false;
  for (auto input : spec_.inputs) {
    if (!contains(inputs, input.name)) continue;
    if (input.name == kPixelValues) {
      pixels = true;
      if (normalised()) input = {kPixelValues, at::kByte, {transform_.size.height, transform_.size.width, 3}};
    }
    spec.inputs.push_back(std::move(input));
  }
  batch_transform_->add_draws(spec, pixels, augment);
  return spec;
}

std::optional<data::Sample> TensorDataset::read(const std::vector<std::string>& inputs, std::int64_t index,
                                                std::int64_t epoch, bool augment) {
  return bad_.guard(index, [&] {
    data::Sample sample;
    std::optional<Augmentation> chance;
    for (const auto& input : spec_.inputs) {
      if (!contains(inputs, input.name)) continue;
      const bool is_image = input.name == kPixelValues;
      if (is_image && augment)
        chance = batch_transform_->draw(epoch, index, transform_.size.height, transform_.size.width);
      sample.inputs.set(input.name, is_image ? image(index, chance.value_or(Augmentation{})) : value(input, index));
    }
    sample.targets.set(nn::kLabels, value(spec_.targets.front(), index));
    if (augment) batch_transform_->add_draws(sample, chance, epoch, index);
    return sample;
  });
}

/// A sample's part of a tensor, as it is stored.
at::Tensor TensorDataset::raw(const std::string& name, std::int64_t index) const {
  const auto& entry = file_.entry(name);
  auto out = at::empty(at::IntArrayRef(entry.shape).slice(1), entry.dtype);
  const auto each = out.nbytes();
  std::memcpy(out.mutable_data_ptr(), file_.bytes(name).data() + static_cast<std::size_t>(index) * each, each);
  return out;
}

at::Tensor TensorDataset::value(const nn::SampleTensor& tensor, std::int64_t index) const {
  auto out = raw(tensor.name, index).to(tensor.dtype);
  if (out.is_floating_point() && !at::isfinite(out).all().item<bool>())
    throw DataError(
        fmt::format("{}: {} of sample {} contains a value that is not finite", file_.path(), tensor.name, index));
  return out;
}

/// Raw pixels: uint8 [H, W, 3], or floating-point [3, H, W].
at::Tensor TensorDataset::image(std::int64_t index, const Augmentation& chance) const {
  const auto [height, width] = transform_.size;
  if (normalised()) {
    auto image = raw(kPixelValues, index).permute({1, 2, 0}).contiguous();
    if (chance.crop) image = resize(crop(image, *chance.crop), height, width);
    return augment(image, chance);
  }
  auto image = value(*spec_.input(kPixelValues), index);
  if (const auto& part = chance.crop)
    image = at::_upsample_bilinear2d_aa(
                image.narrow(1, part->top, part->height).narrow(2, part->left, part->width).unsqueeze(0).contiguous(),
                at::IntArrayRef({height, width}), false, std::nullopt)
                .squeeze(0);
  return chance.flip ? image.flip({2}) : image;
}

}  // namespace trireme::datasets
