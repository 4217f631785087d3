#include "datasets/mix.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/scalar_tensor.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/base/random.h"
#include "datasets/transform.h"

namespace trireme::datasets {
namespace {

/// A draw from Gamma(shape, 1): Marsaglia and Tsang, "A simple method for generating gamma variables", 2000.
double draw_gamma(double shape, std::uint64_t key) {
  // Below 1, where the method does not hold: Gamma(shape) = Gamma(shape + 1) U^(1 / shape).
  const double below = shape < 1 ? std::pow(random::uniform(key, 0), 1 / shape) : 1;
  const double d = (shape < 1 ? shape + 1 : shape) - 1.0 / 3, c = 1 / std::sqrt(9 * d);
  for (std::uint64_t attempt = 0;; ++attempt) {
    const auto bits = random::philox(key, 1, attempt);
    const double normal = std::sqrt(-2 * std::log(random::to_unit(bits.v[0]))) *
                          std::cos(2 * std::numbers::pi * random::to_unit(bits.v[1]));
    const double root = 1 + c * normal;
    if (root <= 0) continue;
    const double cube = root * root * root;
    if (std::log(random::to_unit(bits.v[2])) < 0.5 * normal * normal + d * (1 - cube + std::log(cube)))
      return below * d * cube;
  }
}

/// A box of (1 - share) of the area around a uniform centre, clipped to the image.
void draw_box(std::uint64_t key, std::int64_t height, std::int64_t width, Mix* out) {
  out->cut = true;
  const double side = std::sqrt(1 - out->share);
  const auto range = [side](double centre, std::int64_t size, std::int64_t* from, std::int64_t* to) {
    const auto half = static_cast<std::int64_t>(side * static_cast<double>(size)) / 2;
    const auto middle = static_cast<std::int64_t>(centre * static_cast<double>(size));
    *from = std::clamp<std::int64_t>(middle - half, 0, size);
    *to = std::clamp<std::int64_t>(middle + half, 0, size);
  };
  range(random::uniform(key, 0), height, &out->top, &out->bottom);
  range(random::uniform(key, 1), width, &out->left, &out->right);
  const auto area = static_cast<double>((out->bottom - out->top) * (out->right - out->left));
  out->share = 1 - area / static_cast<double>(height * width);
}

}  // namespace

double draw_beta(double alpha, std::uint64_t key) {
  const double a = draw_gamma(alpha, random::mix(key, 1)), b = draw_gamma(alpha, random::mix(key, 2));
  return a + b > 0 ? a / (a + b) : 0.5;  // both underflow when alpha is tiny
}

Mix draw_mix(const MixOptions& options, std::uint64_t seed, std::int64_t epoch, std::int64_t sample,
             std::int64_t height, std::int64_t width) {
  const auto key = random::mix(random::mix(random::mix(seed, random::hash("mix")), static_cast<std::uint64_t>(epoch)),
                               static_cast<std::uint64_t>(sample));
  const bool both = options.mixup > 0 && options.cutmix > 0;
  const bool cuts = both ? random::uniform(key, 0) < 0.5 : options.cutmix > 0;
  Mix out;
  out.share = draw_beta(cuts ? options.cutmix : options.mixup, random::mix(key, 1));
  if (cuts) draw_box(random::mix(key, 2), height, width, &out);
  return out;
}

std::vector<nn::SampleTensor> mixed_targets() {
  return {{nn::kMixedLabels, at::kLong}, {nn::kLabelShares, at::kFloat}};
}

void mix(data::Sample& sample, const data::Sample& other, const Mix& how) {
  const auto *own = sample.inputs.find(kPixelValues), *its = other.inputs.find(kPixelValues);
  if (own != nullptr && its != nullptr) {
    const auto box = [&how](const at::Tensor& image) {
      return image.narrow(1, how.top, how.bottom - how.top).narrow(2, how.left, how.right - how.left);
    };
    auto mixed = how.cut ? own->clone() : *own * how.share;
    if (how.cut)
      box(mixed).copy_(box(*its));
    else
      mixed.add_(*its, 1 - how.share);
    sample.inputs.set(kPixelValues, std::move(mixed));
  }
  sample.targets.set(nn::kMixedLabels, other.targets[nn::kLabels]);
  sample.targets.set(nn::kLabelShares, at::scalar_tensor(how.share, at::kFloat));
}

}  // namespace trireme::datasets
