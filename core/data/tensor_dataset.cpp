#include "core/data/tensor_dataset.h"

#include <ATen/ops/_upsample_bilinear2d_aa.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/isfinite.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/base/error.h"

namespace trireme::data {
namespace {

constexpr std::int64_t kMaxClasses = 1'000'000;  // a file with more is assumed to hold something else

SafeTensorsFile open_file(const std::string& path) {
  try {
    SafeTensorsFile file(path);
    for (const auto* name : {"pixel_values", "labels"}) static_cast<void>(file.entry(name));
    return file;
  } catch (const FormatError& error) {
    throw DataError(
        fmt::format("{} (a tensors data set needs pixel_values [N, 3, H, W] and labels [N])", error.what()));
  }
}

bool is_pixel_type(at::ScalarType type) {
  return type == at::kDouble || type == at::kFloat || type == at::kHalf || type == at::kBFloat16 || type == at::kByte;
}

}  // namespace

TensorDataset::TensorDataset(const std::string& file, TransformOptions transform, std::uint64_t seed, bool skip_bad,
                             const Log& log)
    : file_(open_file(file)), transform_(transform), seed_(seed), bad_(skip_bad, log) {
  const auto& entry = file_.entry("pixel_values");
  dtype_ = entry.dtype;
  if (!is_pixel_type(dtype_))
    throw DataError(fmt::format("{}: pixel_values is {}; it must be float64, float32, float16, bfloat16 or uint8", file,
                                c10::getDtypeNames(dtype_).first));
  const auto& shape = entry.shape;
  if (shape.size() != 4 || shape[1] != 3 || shape[2] != shape[3] || shape[2] < 1)
    throw DataError(
        fmt::format("{}: pixel_values is [{}]; it must be [N, 3, H, W] with H = W", file, fmt::join(shape, ", ")));
  transform_.size = shape[2];
  read_labels();
  if (size() != shape[0])
    throw DataError(
        fmt::format("{}: {} images (pixel_values) and {} labels; each image needs one", file, shape[0], size()));
  if (size() == 0) throw DataError(fmt::format("{}: holds no samples", file));
}

void TensorDataset::read_labels() {
  const auto& entry = file_.entry("labels");
  if (entry.shape.size() != 1 || (entry.dtype != at::kLong && entry.dtype != at::kInt))
    throw DataError(fmt::format("{}: labels is {} [{}]; it must be int64 or int32, and [N]", file_.path(),
                                c10::getDtypeNames(entry.dtype).first, fmt::join(entry.shape, ", ")));
  const auto labels = file_.read("labels").to(at::kLong);
  labels_.assign(labels.const_data_ptr<std::int64_t>(), labels.const_data_ptr<std::int64_t>() + labels.numel());
  for (std::size_t i = 0; i < labels_.size(); ++i)
    if (labels_[i] < 0 || labels_[i] >= kMaxClasses)
      throw DataError(
          fmt::format("{}: label {} of sample {} is out of range; labels are 0, 1, ... classes - 1 (at most {})",
                      file_.path(), labels_[i], i, kMaxClasses - 1));
}

std::int64_t TensorDataset::largest_label() const { return *std::max_element(labels_.begin(), labels_.end()); }

std::vector<at::Tensor> TensorDataset::empty_inputs() {
  return {at::empty({0, 3, transform_.size, transform_.size}, dtype_ == at::kDouble ? at::kDouble : at::kFloat)};
}

std::optional<Sample> TensorDataset::get(std::int64_t index, std::int64_t epoch, bool augment) {
  return bad_.guard(index, [&] { return read(index, epoch, augment); });
}

at::Tensor TensorDataset::pixels(std::int64_t index) const {
  const auto side = transform_.size;
  auto out = at::empty({3, side, side}, dtype_);
  const auto bytes = file_.bytes("pixel_values");
  const auto each = out.nbytes();
  std::memcpy(out.mutable_data_ptr(), bytes.data() + static_cast<std::size_t>(index) * each, each);
  return out;
}

Sample TensorDataset::read(std::int64_t index, std::int64_t epoch, bool augment) const {
  const auto side = transform_.size;
  auto image = pixels(index);
  Augmentation chance;
  if (augment) chance = draw_augmentation(transform_, seed_, epoch, index, side, side);
  const auto label = labels_[static_cast<std::size_t>(index)];
  if (dtype_ == at::kByte) {
    image = image.permute({1, 2, 0}).contiguous();
    if (chance.crop) image = resize(crop(image, chance), side);
    return {{normalise(image, transform_, chance.flip)}, label};
  }
  if (dtype_ != at::kDouble) image = image.to(at::kFloat);
  if (!at::isfinite(image).all().item<bool>())
    throw DataError(
        fmt::format("{}: pixel_values of sample {} contains a value that is not finite", file_.path(), index));
  if (chance.crop)
    image =
        at::_upsample_bilinear2d_aa(
            image.narrow(1, chance.top, chance.height).narrow(2, chance.left, chance.width).unsqueeze(0).contiguous(),
            at::IntArrayRef({side, side}), false, std::nullopt)
            .squeeze(0);
  if (chance.flip) image = image.flip({2});
  return {{image.contiguous()}, label};
}

}  // namespace trireme::data
