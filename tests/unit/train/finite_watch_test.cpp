// When a run with non-finite numbers continues, and when it ends.
#include "core/train/finite_watch.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "core/base/error.h"

namespace trireme::train {
namespace {

TEST(FiniteWatch, WithoutALossScaleTheFirstBadNumberEndsTheRun) {
  for (const auto& [loss, norm] : {std::pair{NAN, 1.0}, {-NAN, 1.0}, {1.0, NAN}, {INFINITY, 1.0}, {1.0, INFINITY}}) {
    FiniteWatch watch;
    EXPECT_NO_THROW(watch.step(1, 0.5, 2, false, false));
    try {
      watch.step(2, loss, norm, false, false);
      ADD_FAILURE() << loss << " " << norm;
    } catch (const NonFiniteError& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find("step 2"), std::string::npos) << text;
      EXPECT_EQ(text.find("-nan"), std::string::npos) << text;
    }
  }
}

TEST(FiniteWatch, WithALossScaleSomeStepsMayBeSkipped) {
  FiniteWatch watch;
  for (int row = 0; row < 3; ++row) {
    for (int i = 1; i < FiniteWatch::kSkips; ++i) EXPECT_NO_THROW(watch.step(i, 0.5, INFINITY, true, true));
    EXPECT_NO_THROW(watch.step(99, 0.5, 1, false, true));
  }
  for (int i = 1; i < FiniteWatch::kSkips; ++i) watch.step(i, 0.5, NAN, true, true);
  EXPECT_THROW(watch.step(100, 0.5, NAN, true, true), NonFiniteError);
}

TEST(FiniteWatch, RepeatedLossOverflowsEndTheRun) {
  FiniteWatch watch;
  const auto almost_too_many = [&] {
    for (int i = 1; i < FiniteWatch::kBadLosses; ++i) EXPECT_NO_THROW(watch.step(i, NAN, NAN, true, true));
  };
  almost_too_many();
  EXPECT_NO_THROW(watch.step(FiniteWatch::kBadLosses, 0.5, 1.0, false, true));  // ends the series
  almost_too_many();
  EXPECT_THROW(watch.step(FiniteWatch::kBadLosses, NAN, NAN, true, true), NonFiniteError);
}

TEST(FiniteWatch, AValidationLossMustBeFinite) {
  EXPECT_NO_THROW(FiniteWatch::validation(1, 0.5));
  EXPECT_THROW(FiniteWatch::validation(1, INFINITY), NonFiniteError);
}

}  // namespace
}  // namespace trireme::train
