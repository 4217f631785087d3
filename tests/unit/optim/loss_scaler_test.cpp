// The dynamic loss scale against a plain model of its rule, and its state.
#include "core/optim/loss_scaler.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

namespace trireme::optim {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

LossScaleOptions train_options() {
  LossScaleOptions o;
  o.initial_scale = 1024;
  o.min_scale = 256;
  o.max_scale = 2048;
  o.growth_factor = 4;
  o.backoff_factor = 0.5;
  o.growth_interval = 3;
  o.hysteresis = 2;
  return o;
}

// The rule of the header, computed on the host.
struct Rule {
  LossScaleOptions o = train_options();
  double scale = o.initial_scale;
  std::int64_t good = 0, left = o.hysteresis, skipped = 0;
  void update(bool bad) {
    if (bad) {
      good = 0;
      ++skipped;
      if (left > 0) --left;
      if (left == 0) scale = std::max(scale * o.backoff_factor, o.min_scale);
    } else if (++good == o.growth_interval) {
      good = 0;
      left = o.hysteresis;
      scale = std::min(scale * o.growth_factor, o.max_scale);
    }
  }
};

TEST(LossScaler, FollowsItsRule) {
  LossScaler scaler(true, train_options(), at::kCPU);
  Rule rule;
  const std::string steps = "bggbgbbbbbgggbgggggggbbgg";  // reaches both bounds, restores the hysteresis
  bool at_min = false, at_max = false;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const bool bad = steps[i] == 'b';
    ASSERT_EQ(scaler.scale(at::full({}, 2.0)).item<float>(), 2 * rule.scale);
    const float odd = !bad ? 3 : i % 2 ? kInf : kNan;
    const float scale = static_cast<float>(rule.scale);
    std::vector<at::Tensor> grads{at::full({4}, scale * 0.5f),
                                  {},
                                  at::tensor({scale, odd * scale}),
                                  at::zeros({0}),
                                  at::full({2}, scale * 0.25f, at::kDouble)};
    const auto found = scaler.unscale(grads);
    ASSERT_EQ(found.item<float>(), bad ? 1 : 0) << i;
    ASSERT_EQ(found.scalar_type(), at::kFloat);
    EXPECT_EQ(grads[0][3].item<float>(), 0.5f);
    EXPECT_EQ(grads[2][0].item<float>(), 1.f);
    EXPECT_EQ(grads[4][1].item<double>(), 0.25);
    scaler.update(bad ? found.mul(2) : found);  // the sum of two ranks
    rule.update(bad);
    ASSERT_EQ(scaler.state()[0].item<double>(), rule.scale) << "step " << i;
    ASSERT_EQ(scaler.state()[3].item<double>(), rule.skipped) << "step " << i;
    at_min = at_min || rule.scale == rule.o.min_scale;
    at_max = at_max || rule.scale == rule.o.max_scale;
    // A scaler restored from the state at any point continues equally.
    LossScaler copy(true, train_options(), at::kCPU);
    copy.set_state(scaler.state());
    ASSERT_TRUE(at::equal(copy.state(), scaler.state()));
    scaler = std::move(copy);
  }
  EXPECT_TRUE(at_min && at_max);
}

TEST(LossScaler, DisabledDoesNothing) {
  LossScaler scaler(false, train_options(), at::kCPU);
  const auto loss = at::full({}, 2.0);
  EXPECT_TRUE(scaler.scale(loss).is_same(loss));
  const auto grad = at::full({1}, kInf);
  EXPECT_FALSE(scaler.unscale({grad}).defined());
  scaler.update({});
  EXPECT_EQ(scaler.state()[0].item<double>(), 1);
  EXPECT_EQ(scaler.state()[3].item<double>(), 0);
  scaler.set_state(scaler.state());
}

}  // namespace
}  // namespace trireme::optim
