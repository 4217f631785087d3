#include "datasets/rand_augment.h"

#include <array>
#include <cmath>

#include "core/base/random.h"
#include "datasets/image_ops.h"

namespace trireme::datasets {
namespace {

constexpr double kRadian = 3.14159265358979323846 / 180;

struct OperationRow {
  const char* name;
  bool has_direction;  ///< the magnitude is negated with probability 1/2
  at::Tensor (*apply)(const at::Tensor& image, double magnitude);
};

/// At most 150 pixels of an image with 331, the size in the paper's experiments; whole pixels only.
double pixels_of(std::int64_t side, double magnitude) {
  return std::trunc(150.0 * static_cast<double>(side) * magnitude / (331.0 * kMostMagnitude));
}

double half(std::int64_t side) { return static_cast<double>(side) / 2; }

/// The factor of brightness, colour, contrast and sharpness: 0.1 to 1.9, and 1 changes nothing.
double factor_of(double magnitude) { return 1 + 0.03 * magnitude; }

at::Tensor rotate(const at::Tensor& image, double degrees) {
  const double cosine = std::cos(degrees * kRadian), sine = std::sin(degrees * kRadian);
  return warp(image, {.xx = cosine, .xy = -sine, .yx = sine, .yy = cosine});
}

const std::array<OperationRow, kRandAugmentOperations>& operation_rows() {
  using Image = const at::Tensor&;
  static const std::array<OperationRow, kRandAugmentOperations> rows{{
      {"Identity", false, [](Image image, double) { return image; }},
      // A shear leaves the upper left corner where it is.
      {"ShearX", true,
       [](Image image, double m) { return warp(image, {.xy = 0.01 * m, .x0 = 0.01 * m * half(image.size(0))}); }},
      {"ShearY", true,
       [](Image image, double m) { return warp(image, {.yx = 0.01 * m, .y0 = 0.01 * m * half(image.size(1))}); }},
      {"TranslateX", true, [](Image image, double m) { return warp(image, {.x0 = -pixels_of(image.size(1), m)}); }},
      {"TranslateY", true, [](Image image, double m) { return warp(image, {.y0 = -pixels_of(image.size(0), m)}); }},
      {"Rotate", true, [](Image image, double m) { return rotate(image, m); }},
      {"Brightness", true, [](Image image, double m) { return adjust_brightness(image, factor_of(m)); }},
      {"Color", true, [](Image image, double m) { return adjust_saturation(image, factor_of(m)); }},
      {"Contrast", true, [](Image image, double m) { return adjust_contrast(image, factor_of(m)); }},
      {"Sharpness", true, [](Image image, double m) { return adjust_sharpness(image, factor_of(m)); }},
      {"Posterize", false,
       [](Image image, double m) { return posterize(image, static_cast<int>(std::lround(8 - m / 7.5))); }},
      {"Solarize", false, [](Image image, double m) { return solarize(image, 8.5 * (kMostMagnitude - m)); }},
      {"AutoContrast", false, [](Image image, double) { return autocontrast(image); }},
      {"Equalize", false, [](Image image, double) { return equalize(image); }},
  }};
  return rows;
}

const OperationRow& operation_row(std::int64_t number) { return operation_rows().at(static_cast<std::size_t>(number)); }

}  // namespace

const char* name_of_operation(std::int64_t number) { return operation_row(number).name; }

std::vector<AugmentOperation> draw_operations(std::uint64_t key, std::uint64_t stream, std::int64_t count,
                                              std::int64_t magnitude) {
  std::vector<AugmentOperation> out;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto bits = random::philox(key, stream, static_cast<std::uint64_t>(i));
    const auto number = static_cast<std::int64_t>(random::to_unit(bits.v[0]) * kRandAugmentOperations);
    const bool negative = operation_row(number).has_direction && (bits.v[1] & 1U) != 0;
    out.push_back({number, negative ? -magnitude : magnitude});
  }
  return out;
}

at::Tensor apply_operation(const at::Tensor& image, const AugmentOperation& operation) {
  return operation_row(operation.number).apply(image, static_cast<double>(operation.magnitude));
}

}  // namespace trireme::datasets
