#include "datasets/mix.h"

#include <ATen/ops/lerp.h>
#include <ATen/ops/tensor.h>

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
  const auto key = random::mix(seed, random::hash("mix"), epoch, sample);
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

at::Tensor as_tensor(const Mix& how) {
  const auto box = [](std::int64_t pixel) { return static_cast<double>(pixel); };
  return at::tensor({how.share, how.cut ? 1 : how.share, box(how.top), box(how.bottom), box(how.left), box(how.right)},
                    at::kDouble);
}

data::Sample mix(const data::Sample& batch, const at::Tensor& draws) {
  const auto samples = draws.size(0) - 1;
  data::Sample out;
  for (const auto& [name, tensor] : batch.inputs) out.inputs.set(name, tensor.narrow(0, 0, samples));
  for (const auto& [name, tensor] : batch.targets) out.targets.set(name, tensor.narrow(0, 0, samples));
  const auto own = draws.narrow(0, 0, samples);
  if (const auto* pixels = batch.inputs.find(kPixelValues)) {
    const auto inside = box_mask(own.narrow(1, 2, 4), pixels->size(2), pixels->size(3));
    const auto outside = own.narrow(1, 1, 1).unsqueeze(2).unsqueeze(3);
    const auto weight = outside.masked_fill(inside, 0).to(pixels->scalar_type());
    out.inputs.set(kPixelValues, at::lerp(pixels->narrow(0, 1, samples), pixels->narrow(0, 0, samples), weight));
  }
  out.targets.set(nn::kMixedLabels, batch.targets[nn::kLabels].narrow(0, 1, samples));
  out.targets.set(nn::kLabelShares, own.select(1, 0).to(at::kFloat));
  return out;
}

}  // namespace trireme::datasets
