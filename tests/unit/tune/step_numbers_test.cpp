#include "core/tune/step_numbers.h"

#include <ATen/ops/full.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <limits>

namespace trireme::tune {
namespace {

shard::Slice slice(const std::string& name, at::Tensor value) {
  auto sizes = value.sizes().vec();
  return {shard::Placement::whole(name, std::move(sizes)), std::move(value)};
}

double length_of(const at::Tensor& sums) { return at::linalg_vector_norm(sums).item<double>(); }

/// Sizes that fill no row, one row, and several rows and a part.
TEST(StepNumbers, SketchesKeepNormsOfDifferences) {
  const Sketcher sketcher({{"w", 0}}, 1);
  for (const std::int64_t size : std::vector<std::int64_t>{1, 700, 16 * kSketch, 5'000'001}) {
    at::manual_seed(static_cast<std::uint64_t>(size));
    const auto a = at::randn({size}), noise = at::randn({size}) * 1e-5;
    const auto lost_token = (at::randn({size / 100 + 1, 1}) * at::randn({1, 100})).view({-1}).narrow(0, 0, size) * 1e-5;
    for (const auto& off : {noise, lost_token, at::full({size}, 1e-5)}) {
      const auto difference = sketcher.of({slice("w", a + off)}).sums - sketcher.of({slice("w", a)}).sums;
      const double exact = at::linalg_vector_norm((a + off).to(at::kDouble) - a.to(at::kDouble)).item<double>();
      EXPECT_NEAR(length_of(difference) / exact, 1, size == 1 ? 1e-9 : 0.2) << size;
    }
  }
}

TEST(StepNumbers, SketchesAreByBlockAndLeaveOutOthers) {
  const Sketcher sketcher({{"w", 1}}, 3);
  const auto sketch = sketcher.of({slice("w", at::randn({10, 3})), slice("unknown", at::randn({7}))});
  EXPECT_EQ(length_of(sketch.sums[0]), 0);
  EXPECT_GT(length_of(sketch.sums[1]), 0);
  EXPECT_EQ(length_of(sketch.sums[2]), 0);
}

TEST(StepNumbers, DigestsSeeEveryBit) {
  const Sketcher sketcher({{"w", 0}}, 1);
  for (const auto type : {at::kFloat, at::kDouble, at::kBFloat16}) {
    auto value = at::randn({20'000}).to(type);
    const auto before = sketcher.of({slice("w", value)});
    EXPECT_EQ(before.digest, sketcher.of({slice("w", value.clone())}).digest);
    auto changed = value.clone();
    changed[12'345].mul_(c10::elementSize(type) == 2 ? 1.01 : 1 + 2 * (type == at::kFloat ? 1.2e-7 : 2.3e-16));
    ASSERT_FALSE(changed.equal(value));
    EXPECT_NE(before.digest, sketcher.of({slice("w", changed)}).digest);
    auto swapped = value.clone();
    swapped[0] = value[1];
    swapped[1] = value[0];
    EXPECT_NE(before.digest, sketcher.of({slice("w", swapped)}).digest);
  }
}

StepNumbers numbers_of(const Sketcher& sketcher, double loss, const at::Tensor& a, const at::Tensor& b) {
  const auto sketch = sketcher.of({slice("a", a), slice("b", b)});
  return {.loss = loss, .gradients = sketch, .change = sketch};
}

TEST(StepNumbers, ErrorsAreRelativeByBlock) {
  const Sketcher sketcher({{"a", 0}, {"b", 1}}, 2);
  const auto a = at::randn({5000}, at::kDouble), b = 1e-4 * at::randn({5000}, at::kDouble);
  const std::vector expected{numbers_of(sketcher, 2, a, b)};
  const auto errors = errors_of({numbers_of(sketcher, 2.5, a * 1.01, b * 1.1)}, expected, nullptr);
  EXPECT_DOUBLE_EQ(errors.loss.at(0), 0.25);
  EXPECT_NEAR(errors.gradients.at(0), 0.01, 1e-9);
  EXPECT_NEAR(errors.change.at(1), 0.1, 1e-9);
  EXPECT_DOUBLE_EQ(errors.largest(), 0.25);
  const auto none = errors_of(expected, expected, nullptr);
  EXPECT_EQ(none.largest(), 0);
  for (const double bad : {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    auto broken = b.clone();
    broken[17] = bad;
    EXPECT_EQ(errors_of({numbers_of(sketcher, 2, a, broken)}, expected, nullptr).gradients.at(1), INFINITY);
    EXPECT_EQ(errors_of({numbers_of(sketcher, bad, a, b)}, expected, nullptr).loss.at(0), INFINITY);
  }
}

TEST(StepNumbers, BoundsAreTwiceTheDefaultsErrorsAndNotLessThanItsMedian) {
  const StepErrors of_default{.loss = {1e-9}, .gradients = {1e-6, 1e-8, 3e-6}, .change = {1e-3, 1e-3, 1e-3}};
  const ErrorBound bound(of_default, /*least=*/1e-7);
  auto errors = of_default;
  EXPECT_EQ(bound.exceeded_by(errors), "");
  errors.gradients = {1.9e-6, 0.9e-6, 5.9e-6};  // the second one is below the median, 1e-6
  errors.loss = {0.9e-6};
  EXPECT_EQ(bound.exceeded_by(errors), "");
  errors.gradients[1] = 1.1e-6;
  EXPECT_EQ(bound.exceeded_by(errors), "block 1: the error of its gradient is 1.1e-06, 1.0e-08 by the default");
  errors = of_default;
  errors.change[2] = 0.9e-2;
  EXPECT_EQ(bound.exceeded_by(errors), "");
  errors.change[2] = 0.5;
  EXPECT_EQ(bound.exceeded_by(errors),
            "block 2: the error of the change of its weights is 5.0e-01, 1.0e-03 by the default");
  errors = of_default;
  errors.loss[0] = INFINITY;
  EXPECT_NE(bound.exceeded_by(errors), "");
  EXPECT_TRUE(bound.is_usable());
  EXPECT_FALSE(ErrorBound({}, 1e-7).is_usable());
  auto overflown = of_default;
  overflown.gradients[1] = INFINITY;
  EXPECT_FALSE(ErrorBound(overflown, 1e-7).is_usable());
  EXPECT_NE(ErrorBound(overflown, 1e-7).exceeded_by(overflown), "");
}

}  // namespace
}  // namespace trireme::tune
