// The cross-entropy of a head's scores without the scores, against that of the scores: every option, dtype and number
// of rows at once, with all gradients.
#include "core/nn/layers/linear_cross_entropy.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/stack.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "core/base/autocast.h"
#include "core/base/error.h"

namespace trireme::nn {
namespace {

constexpr std::int64_t kTexts = 3, kPlaces = 7, kWidth = 6, kWords = 40;

/// A head of random numbers, which are the same in float64 and in `dtype`.
struct Random {
  explicit Random(at::ScalarType dtype, bool with_bias = true) {
    at::manual_seed(11);
    const auto leaf = [dtype](at::IntArrayRef shape) {
      return at::randn(shape, at::kDouble).to(dtype).requires_grad_(true);
    };
    head = {.x = leaf({kTexts, kPlaces, kWidth}),
            .weight = leaf({kWords, kWidth}),
            .bias = with_bias ? leaf({kWords}) : at::Tensor(),
            .classes = kWords};
    labels = at::randint(kWords, {kTexts, kPlaces}, at::kLong);
    labels[1][2] = -100;
    labels[2] = -100;
  }
  /// cross_entropy() of the scores, in float64.
  [[nodiscard]] at::Tensor expected(const CrossEntropyOptions& options) const {
    const auto bias = head.bias.defined() ? head.bias.to(at::kDouble) : at::Tensor();
    return cross_entropy(at::linear(head.x.to(at::kDouble), head.weight.to(at::kDouble), bias), labels, options);
  }
  [[nodiscard]] torch::autograd::variable_list leaves() const {
    if (!head.bias.defined()) return {head.x, head.weight};
    return {head.x, head.weight, head.bias};
  }

  Head head;
  at::Tensor labels;
};

std::vector<CrossEntropyOptions> all_options(const at::Tensor& labels) {
  const auto weights = at::rand({kWords}, at::kDouble) + 0.1;
  const auto share = at::rand(labels.sizes(), at::kDouble);
  return {{},
          {.label_smoothing = 0.3},
          {.class_weights = weights},
          {.label_smoothing = 0.3, .class_weights = weights},
          {.label_smoothing = 0.2, .class_weights = weights, .shares = at::stack({share, 1 - share}, -1)}};
}

double distance(const at::Tensor& a, const at::Tensor& b) {
  return ((a.to(at::kDouble) - b.to(at::kDouble)).norm() / b.to(at::kDouble).norm()).item<double>();
}

TEST(LinearCrossEntropy, IsThatOfTheScores) {
  for (const auto dtype : {at::kDouble, at::kFloat, at::kBFloat16})
    for (const bool with_bias : {true, false})
      for (const std::int64_t rows : {1, 4, 7, 100})
        for (const auto& options : all_options(Random(at::kDouble).labels)) {
          SCOPED_TRACE(testing::Message() << c10::toString(dtype) << ", " << rows << " rows, bias " << with_bias
                                          << ", smoothing " << options.label_smoothing);
          auto random = Random(dtype, with_bias);
          if (options.shares.defined()) random.labels = at::stack({random.labels, random.labels.abs() % 5}, -1);
          const auto expected = random.expected(options);
          const auto wanted = torch::autograd::grad({expected * 0.7}, random.leaves());
          const auto loss = linear_cross_entropy(random.head, random.labels, options, rows);
          const auto got = torch::autograd::grad({loss * 0.7}, random.leaves());
          EXPECT_EQ(loss.scalar_type(), dtype == at::kDouble ? at::kDouble : at::kFloat);
          const double bound = dtype == at::kDouble ? 1e-12 : dtype == at::kFloat ? 1e-5 : 2e-2;
          EXPECT_LT(distance(loss, expected), bound);
          for (std::size_t i = 0; i < got.size(); ++i) {
            EXPECT_EQ(got[i].scalar_type(), dtype);
            EXPECT_LT(distance(got[i], wanted[i]), bound) << "gradient " << i;
          }
        }
}

TEST(LinearCrossEntropy, GivesTheWantedGradientsInTwoPasses) {
  const Random random(at::kDouble);
  const auto wanted = torch::autograd::grad({random.expected({})}, random.leaves());
  const auto loss = linear_cross_entropy(random.head, random.labels, {}, 4);
  const auto of_x = torch::autograd::grad({loss}, {random.head.x}, {}, /*retain_graph=*/true);
  const auto others = torch::autograd::grad({loss}, {random.head.weight, random.head.bias}, {}, /*retain_graph=*/true);
  EXPECT_LT(distance(of_x[0], wanted[0]), 1e-12);
  EXPECT_LT(distance(others[0], wanted[1]), 1e-12);
  EXPECT_LT(distance(others[1], wanted[2]), 1e-12);
  EXPECT_THROW(torch::autograd::grad({loss}, {random.head.x}), LogicError) << "each gradient is there once";
}

TEST(LinearCrossEntropy, ComputesNoGradientThatNobodyWants) {
  Random random(at::kDouble);
  random.head.weight.requires_grad_(false);
  random.head.bias.requires_grad_(false);
  const auto wanted = torch::autograd::grad({random.expected({})}, {random.head.x});
  const auto got = torch::autograd::grad({linear_cross_entropy(random.head, random.labels, {}, 4)}, {random.head.x});
  EXPECT_LT(distance(got[0], wanted[0]), 1e-12);
  const at::NoGradGuard no_grad;
  const auto loss = linear_cross_entropy(random.head, random.labels, {}, 4);
  EXPECT_FALSE(loss.requires_grad());
  EXPECT_LT(distance(loss, random.expected({})), 1e-12);
}

// Gradients that fp16 cannot hold are rounded after the loss scale has made them larger.
TEST(LinearCrossEntropy, RoundsGradientsWithTheLossScale) {
  const auto scale = at::full({}, 65536.0, at::kFloat);
  Random random(at::kHalf);
  random.head.x = (random.head.x.detach() * 1e-6).requires_grad_(true);
  random.labels.zero_();
  random.head.loss_gradient = scale;
  const auto wanted = torch::autograd::grad({random.expected({}) * 65536.0}, {random.head.weight})[0];
  const auto loss = linear_cross_entropy(random.head, random.labels, {}, 4);
  const auto got = torch::autograd::grad({loss * scale}, {random.head.weight})[0];
  EXPECT_LT(distance(got.narrow(0, 1, kWords - 1), wanted.narrow(0, 1, kWords - 1)), 2e-2) << "of words without labels";
}

TEST(LinearCrossEntropy, ComputesInTheDtypeOfAutocast) {
  const Random random(at::kFloat);
  auto narrow = random.head;
  for (auto* tensor : {&narrow.x, &narrow.weight, &narrow.bias})
    *tensor = tensor->detach().to(at::kBFloat16).requires_grad_(true);
  const auto expected = linear_cross_entropy(narrow, random.labels, {}, 4);
  const auto wanted = torch::autograd::grad({expected}, {narrow.x, narrow.weight, narrow.bias});
  const auto before = AutocastState::current(at::kCPU);
  AutocastState{at::kCPU, true, at::kBFloat16}.apply();
  const auto loss = linear_cross_entropy(random.head, random.labels, {}, 4);
  EXPECT_TRUE(AutocastState::current(at::kCPU).enabled);
  before.apply();
  clear_autocast_cache();
  EXPECT_TRUE(loss.equal(expected));
  const auto got = torch::autograd::grad({loss}, random.leaves());
  for (std::size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].scalar_type(), at::kFloat);
    EXPECT_TRUE(got[i].equal(wanted[i].to(at::kFloat))) << "gradient " << i;
  }
}

/// Whether a head of so many rows and words computes its loss in place of its scores.
bool is_in_place(std::int64_t rows, std::int64_t words, const Context& context, bool trains_weight = true) {
  const auto options = at::TensorOptions(at::kMeta).dtype(at::kFloat);
  const Head head{.x = at::empty({rows, kWidth}, options),
                  .weight = at::empty({words, kWidth}, options).requires_grad_(trains_weight),
                  .bias = {},
                  .classes = words};
  return loss_in_place_of_scores(head, context).defined();
}

TEST(LossInPlaceOfScores, IsOnlyWhereItSavesMemory) {
  Context context{.training = true, .loss_of_head = [](const Head&) { return at::full({}, 1.0); }};
  EXPECT_TRUE(is_in_place(1 << 10, 1 << 17, context)) << "512 MB of scores";
  EXPECT_FALSE(is_in_place(1 << 10, 1 << 10, context)) << "4 MB";
  EXPECT_FALSE(is_in_place(4, 1 << 27, context)) << "the weight's gradient is larger";
  EXPECT_TRUE(is_in_place(4, 1 << 27, context, /*trains_weight=*/false));
  context.training = false;
  EXPECT_FALSE(is_in_place(1 << 10, 1 << 17, context));
  context.training = true;
  context.loss_of_head = nullptr;
  EXPECT_FALSE(is_in_place(1 << 10, 1 << 17, context)) << "somebody reads the scores";
}

}  // namespace
}  // namespace trireme::nn
