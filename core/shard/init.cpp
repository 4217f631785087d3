#include "core/shard/init.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <cmath>

#include "core/base/error.h"
#include "core/base/random.h"

namespace trireme::shard {
namespace {

// Inverse of the normal distribution function, by bisection-free rational approximation (P. J. Acklam, 2003; relative
// error below 1.2e-9) and one step of Halley's method, which brings it to double precision.
double inverse_normal(double p) {
  static constexpr double a[] = {-3.969683028665376e+01, 2.209460984245205e+02,  -2.759285104469687e+02,
                                 1.383577518672690e+02,  -3.066479806614716e+01, 2.506628277459239e+00};
  static constexpr double b[] = {-5.447609879822406e+01, 1.615858368580409e+02, -1.556989798598866e+02,
                                 6.680131188771972e+01, -1.328068155288572e+01};
  // Only the central region is needed: truncation at two deviations keeps p within [0.0227, 0.9773]; the
  // approximation's tails begin at 0.02425, where this form is still good to 1e-8 before Halley's step.
  const double q = p - 0.5, r = q * q;
  double x = (((((a[0] * r + a[1]) * r + a[2]) * r + a[3]) * r + a[4]) * r + a[5]) * q /
             (((((b[0] * r + b[1]) * r + b[2]) * r + b[3]) * r + b[4]) * r + 1);
  const double error = 0.5 * std::erfc(-x / 1.4142135623730951) - p;
  const double u = error * 2.5066282746310002 * std::exp(x * x / 2);
  return x - u / (1 + x * u / 2);
}

double draw_one(const Init& init, std::uint64_t key, std::uint64_t element) {
  switch (init.kind) {
    case Init::Kind::zeros:
      return 0;
    case Init::Kind::ones:
      return 1;
    case Init::Kind::uniform:
      return init.a + (init.b - init.a) * random::uniform(key, element);
    case Init::Kind::normal:
      return init.a + init.b * random::normal(key, element);
    case Init::Kind::trunc_normal: {
      // P(z <= -2) and P(z <= 2) of the standard normal.
      constexpr double low = 0.022750131948179195, high = 0.9772498680518208;
      return init.a + init.b * inverse_normal(low + (high - low) * random::uniform(key, element));
    }
  }
  throw LogicError("an initialisation of no known kind");
}

}  // namespace

at::Tensor draw(const Init& init, std::uint64_t seed, const Placement& placement, at::ScalarType dtype,
                c10::Device device) {
  auto values = at::empty({placement.local_numel()}, at::kDouble);
  auto* out = values.data_ptr<double>();
  const std::uint64_t key = random::mix(seed, random::hash(placement.name));
  for (const auto& run : placement.runs())
    at::parallel_for(0, run.size, 4096, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i)
        out[run.local_begin + i] = draw_one(init, key, static_cast<std::uint64_t>(run.full_begin + i));
    });
  return values.view(placement.local_shape()).to(at::TensorOptions().dtype(dtype).device(device));
}

}  // namespace trireme::shard
