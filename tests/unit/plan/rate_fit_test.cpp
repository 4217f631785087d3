// RateFit: the rates by which operators took their times come back, at sizes at which none was seen.
#include "core/plan/rate_fit.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <vector>

namespace trireme::plan {
namespace {

SeenOperator seen(const Work& work, double seconds) {
  const std::chrono::steady_clock::time_point begin{};
  const std::chrono::duration<double> taken(seconds);
  return {.name = "", .work = work, .begin = begin, .end = begin + std::chrono::round<std::chrono::nanoseconds>(taken)};
}

/// A square product.
Work product(double size, at::ScalarType dtype = at::kFloat) {
  return {.kind = Kind::product,
          .flops = 2 * std::pow(size, 3),
          .bytes = 3 * static_cast<double>(c10::elementSize(dtype)) * size * size,
          .dtype = dtype};
}
Work copy(double bytes) { return {.kind = Kind::copy, .bytes = bytes}; }

TEST(RateFit, RatesComeBack) {
  RateFit fit;
  const auto sizes = RateFit::kProducts.sizes();
  std::vector<double> true_rates;
  for (const double size : sizes) true_rates.push_back(1e10 * std::sqrt(size));
  for (double size = 9; size < 2000; size *= 1.7)
    fit.add(seen(product(size), product(size).flops / rate_at(sizes, true_rates, size)));
  const auto rates = fit.rates(Kind::product);
  ASSERT_EQ(rates.size(), sizes.size());
  for (std::size_t i = 1; i + 1 < sizes.size(); ++i) EXPECT_NEAR(rates[i] / true_rates[i], 1, 0.1) << sizes[i];
  EXPECT_TRUE(fit.rates(Kind::product, at::kDouble).empty());
  EXPECT_TRUE(fit.rates(Kind::copy).empty());
}

TEST(RateFit, TheLongestOperatorsCountMost) {
  RateFit fit;
  for (int i = 0; i < 100; ++i) fit.add(seen(copy(1 << 20), 1e-3));
  fit.add(seen(copy(1 << 20), 0.9));  // as a rank that had to wait for its core
  EXPECT_NEAR(fit.rates(Kind::copy)[4], (1 << 20) * 101 / 1.0, 1e6);
}

TEST(RateFit, OneSizeGivesItsRateToAll) {
  RateFit fit;
  fit.add(seen(copy(1 << 14), 1e-4));
  for (const double rate : fit.rates(Kind::copy)) EXPECT_NEAR(rate, (1 << 14) / 1e-4, 1e-3 * (1 << 14) / 1e-4);
}

TEST(RateFit, WhatIsSmallTakesAsLongAsTheSmallest) {
  RateFit fit;
  fit.add(seen(copy(16), 1e-6));
  EXPECT_NEAR(fit.rates(Kind::copy)[0], RateFit::kBytes.least / 1e-6, 1e-3 * RateFit::kBytes.least / 1e-6);
}

TEST(RateFit, PartsOfOtherRates) {
  RateFit fit;
  EXPECT_EQ(fit.part_of_products(Kind::attention, at::kFloat), 1);
  for (const double size : {30, 60, 120}) {
    fit.add(seen(product(size), product(size).flops / 1e10));
    fit.add(seen(product(size, at::kBFloat16), product(size).flops / 4e10));
    for (const auto dtype : {at::kFloat, at::kBFloat16}) {
      auto attention = product(size, dtype);
      attention.kind = Kind::attention;
      fit.add(seen(attention, attention.flops / 5e9));
    }
    auto wide = copy(size * size);
    fit.add(seen(wide, 1e-4));
    wide.dtype = at::kDouble;
    fit.add(seen(wide, 3e-4));
  }
  EXPECT_NEAR(fit.part_of_products(Kind::attention, at::kFloat), 0.5, 1e-3);
  EXPECT_NEAR(fit.part_of_products(Kind::attention, at::kBFloat16), 0.125, 1e-3);
  EXPECT_NEAR(fit.part_of_float(at::kDouble, /*convolutions=*/false), 1. / 3, 1e-3);
  EXPECT_EQ(fit.part_of_float(at::kDouble, /*convolutions=*/true), 1);
}

TEST(RateFit, ViewsAreOperatorsWithoutWork) {
  RateFit fit;
  fit.add(seen({.kind = Kind::view}, 1e-3));
  fit.add(seen(copy(1 << 20), 2e-3));
  EXPECT_EQ(fit.operators(), 2);
  EXPECT_NEAR(fit.seconds(), 2e-3, 1e-9);
}

TEST(OverheadFit, IsTheLineThroughNetworks) {
  OverheadFit fit;
  for (const double inside : {2e-6, 1e-5, 1e-4}) fit.add(inside, 3e-6 + 1.25 * inside);
  EXPECT_NEAR(fit.line().launch, 3e-6, 1e-12);
  EXPECT_NEAR(fit.line().factor, 1.25, 1e-9);
}

}  // namespace
}  // namespace trireme::plan
