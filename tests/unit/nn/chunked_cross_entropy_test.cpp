// The cross-entropy of many logits: against its definition, with every option, in every dtype, in place and not.
#include "core/nn/layers/chunked_cross_entropy.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/stack.h>
#include <gtest/gtest.h>

#include "core/base/error.h"

namespace trireme::nn {
namespace {

constexpr std::int64_t kRows = 13, kClasses = 90'000;  // more than one chunk; the last one has one row

/// sum_k share_k ((1 - e) w[label_k] (-log p[label_k]) + e / C sum_c w[c] (-log p[c])) over the labels that count.
at::Tensor by_definition(const at::Tensor& logits, const at::Tensor& labels, const CrossEntropyOptions& options) {
  const auto log_p = at::log_softmax(logits.to(at::kDouble), 1);
  const auto weights =
      options.class_weights.defined() ? options.class_weights : at::rand({kClasses}, at::kDouble) * 0 + 1;
  const auto of = options.shares.defined() ? labels : labels.unsqueeze(1);
  const auto share =
      (options.shares.defined() ? options.shares : at::rand(of.sizes(), at::kDouble) * 0 + 1) * of.ne(-100);
  const auto safe = of * of.ne(-100);
  const auto hard = (log_p.gather(1, safe) * weights.index_select(0, safe.flatten()).view_as(safe) * share).sum();
  const auto all = (log_p.matmul(weights) * share.sum(1)).sum();
  return -(1 - options.label_smoothing) * hard - options.label_smoothing / kClasses * all;
}

struct LossCase {
  const char* name;
  CrossEntropyOptions options;
  at::Tensor labels;
};

std::vector<LossCase> cases() {
  at::manual_seed(3);
  auto labels = at::randint(kClasses, {kRows}, at::kLong);
  labels[4] = -100;
  const auto two = at::stack({labels, at::randint(kClasses, {kRows}, at::kLong)}, 1);
  const auto share = at::rand({kRows}, at::kDouble), weights = at::rand({kClasses}, at::kDouble) + 0.1;
  const auto shares = at::stack({share, 1 - share}, 1);
  return {{"plain", {}, labels},
          {"smoothed", {.label_smoothing = 0.3}, labels},
          {"weighted, smoothed", {.label_smoothing = 0.3, .class_weights = weights}, labels},
          {"mixed", {.shares = shares}, two},
          {"mixed, weighted, smoothed", {.label_smoothing = 0.2, .class_weights = weights, .shares = shares}, two}};
}

TEST(ChunkedCrossEntropy, IsItsDefinition) {
  for (const auto& [name, options, labels] : cases())
    for (const bool overwrite : {false, true})
      for (const auto dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
        SCOPED_TRACE(testing::Message() << name << ", " << c10::toString(dtype) << (overwrite ? ", in place" : ""));
        const auto values = (at::randn({kRows, kClasses}, at::kDouble) * 5).to(dtype);
        const auto whole = values.to(at::kDouble).clone().requires_grad_(true);
        const auto expected = by_definition(whole, labels, options);
        (expected * 0.7).backward();

        const auto leaf = values.clone().requires_grad_(true);
        const auto logits = leaf * 1;  // the gradient must not be written into a leaf
        auto how = options;
        how.overwrite = overwrite;
        const auto loss = cross_entropy(logits, labels, how);
        EXPECT_EQ(loss.scalar_type(), dtype == at::kDouble ? at::kDouble : at::kFloat);
        EXPECT_TRUE(logits.detach().equal(values)) << "the forward pass leaves the logits alone";
        const auto exact = dtype == at::kDouble ? 1e-12 : 1e-5;
        EXPECT_NEAR(loss.item<double>(), expected.item<double>(), exact * expected.item<double>());
        (loss * 0.7).backward();
        const auto error = (leaf.grad().to(at::kDouble) - whole.grad()).norm() / whole.grad().norm();
        EXPECT_LT(error.item<double>(), dtype == at::kBFloat16 ? 4e-3 : exact);
        EXPECT_EQ(logits.detach().equal(values), !overwrite);
        if (overwrite) {
          EXPECT_TRUE(logits.detach().equal(leaf.grad())) << "the memory is the gradient's";
        }
      }
}

TEST(ChunkedCrossEntropy, OfFewLogitsIsTheSame) {
  at::manual_seed(5);
  const auto few = (at::randn({4, 11}, at::kDouble) * 3).requires_grad_(true);
  const auto labels = at::arange(4, at::kLong);
  const auto expected = cross_entropy(few, labels, {.label_smoothing = 0.1});  // LibTorch's
  const auto got = chunked_cross_entropy(few, labels, {.label_smoothing = 0.1}, 11);
  EXPECT_NEAR(got.item<double>(), expected.item<double>(), 1e-12);
}

TEST(ChunkedCrossEntropy, CannotGoBackwardTwiceInPlace) {
  const auto logits = at::randn({kRows, kClasses}).requires_grad_(true) * 1;
  const auto loss = cross_entropy(logits, at::arange(kRows, at::kLong), {.overwrite = true});
  loss.backward({}, /*retain_graph=*/true);
  EXPECT_ANY_THROW(loss.backward());
}

}  // namespace
}  // namespace trireme::nn
