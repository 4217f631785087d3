// The dropout mask by name and sample (contract C2), and attention with it.
#include "core/nn/layers/dropout.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <cmath>

#include "core/base/error.h"
#include "core/nn/layers/attention.h"

namespace trireme::nn {
namespace {

at::Tensor ids(std::initializer_list<std::int64_t> values) { return at::tensor(std::vector<std::int64_t>(values)); }
double share(const at::Tensor& mask) { return mask.to(at::kDouble).mean().item<double>(); }

TEST(DropoutMask, EachElementFollowsItsRandomWord) {
  for (const std::int64_t count : {1, 3, 64, 65, 1000}) {
    for (const double p : {0.0, 1e-12, 0.1, 0.5, 0.999, 1 - 1e-16}) {
      const auto mask = dropout_mask(77, p, ids({5, 1LL << 40}), Elements::all(count), at::kCPU);
      ASSERT_EQ(mask.sizes(), (at::IntArrayRef{2, count}));
      const auto* keep = mask.const_data_ptr<bool>();
      for (std::int64_t s = 0; s < 2; ++s)
        for (std::int64_t e = 0; e < count; ++e) {
          const auto token_ids = random::philox(77, s == 0 ? 5 : 1ULL << 40, static_cast<std::uint64_t>(e / 4));
          ASSERT_EQ(keep[s * count + e], random::to_unit(token_ids.v[e % 4]) >= p) << count << " " << p << " " << e;
        }
    }
  }
}

TEST(DropoutMask, KeepsTheRightShareAndDiffersByEveryKey) {
  constexpr std::int64_t n = 400'000;
  const auto draw = [&](std::uint64_t seed, std::int64_t step, const char* layer, std::int64_t sample, double p) {
    return dropout_mask(dropout_key(seed, step, layer), p, ids({sample}), Elements::all(n), at::kCPU);
  };
  for (const double p : {0.1, 0.5, 0.9}) {
    const double deviation = std::sqrt(p * (1 - p) / n);
    EXPECT_NEAR(share(draw(1, 2, "a", 3, p)), 1 - p, 5 * deviation) << p;
  }
  const auto base = draw(1, 2, "a", 3, 0.5);
  EXPECT_TRUE(at::equal(base, draw(1, 2, "a", 3, 0.5)));
  // The mask of any other key is independent: the two agree in about half of the elements.
  for (const auto& other :
       {draw(9, 2, "a", 3, 0.5), draw(1, 9, "a", 3, 0.5), draw(1, 2, "b", 3, 0.5), draw(1, 2, "a", 9, 0.5)})
    EXPECT_NEAR(share(base.eq(other)), 0.5, 5 * 0.5 / std::sqrt(n));
}

TEST(DropoutMask, ASamplesMaskDoesNotDependOnItsPosition) {
  const auto all = dropout_mask(4, 0.3, ids({10, 11, 12, 13}), Elements::all(777), at::kCPU);
  const auto some = dropout_mask(4, 0.3, ids({13, 11}), Elements::all(777), at::kCPU);
  EXPECT_TRUE(at::equal(some[0], all[3]));
  EXPECT_TRUE(at::equal(some[1], all[1]));
  EXPECT_EQ(dropout_mask(4, 0.3, at::empty({0}, at::kLong), Elements::all(777), at::kCPU).size(0), 0);
}

TEST(DropoutMask, ASliceEqualsTheSliceOfTheWhole) {
  const std::int64_t tokens = 7, width = 30;
  const auto full = dropout_mask(4, 0.4, ids({3, 8}), Elements::all(tokens * width), at::kCPU).view({2, tokens, width});
  const auto columns =
      dropout_mask(4, 0.4, ids({3, 8}), {.count = tokens * 11, .offset = 13, .row = 11, .stride = width}, at::kCPU);
  EXPECT_TRUE(at::equal(columns.view({2, tokens, 11}), full.narrow(2, 13, 11)));
  const auto rows = dropout_mask(4, 0.4, ids({3, 8}), {.count = 3 * width, .offset = 2 * width}, at::kCPU);
  EXPECT_TRUE(at::equal(rows.view({2, 3, width}), full.narrow(1, 2, 3)));
}

TEST(Dropout, ScalesWhatItKeepsAndIsTheIdentityInEvaluation) {
  Dropout dropout(0.25);
  dropout.set_path("layer");
  const Context train{.training = true, .seed = 1, .step = 2, .sample_ids = ids({4, 9})};
  const auto x = at::rand({2, 5, 6}, at::kDouble).requires_grad_();
  const auto y = dropout.forward(x, train);
  const auto mask = dropout_mask(dropout_key(1, 2, "layer"), 0.25, train.sample_ids, Elements::all(30), at::kCPU);
  const auto factor = mask.view({2, 5, 6}).to(at::kDouble) / 0.75;
  EXPECT_LE((y - x * factor).abs().max().item<double>(), 1e-15);
  y.sum().backward();
  EXPECT_LE((x.grad() - factor).abs().max().item<double>(), 1e-15);

  EXPECT_TRUE(dropout.forward(x, {.training = false}).is_same(x));
  EXPECT_TRUE(Dropout(0).forward(x, train).is_same(x));
  const Context none{.training = true, .sample_ids = at::empty({0}, at::kLong)};
  EXPECT_EQ(dropout.forward(x.narrow(0, 0, 0), none).sizes(), (at::IntArrayRef{0, 5, 6}));
  EXPECT_THROW(dropout.forward(x, {.training = true}), UsageError);
  EXPECT_THROW(dropout.forward(x, {.training = true, .sample_ids = ids({1})}), UsageError);
  EXPECT_THROW(Dropout(1.0), UsageError);
}

TEST(Dropout, OfASliceEqualsTheSliceOfTheWhole) {
  Dropout dropout(0.4);
  dropout.set_path("layer");
  const Context context{.training = true, .seed = 3, .step = 5, .sample_ids = ids({4, 9})};
  const auto x = at::rand({2, 7, 3}, at::kDouble);
  const auto whole = dropout.forward(x, context);
  for (const auto& [begin, end] : {std::pair{0, 3}, {3, 7}, {7, 7}, {2, 3}}) {
    dropout.mask_slice.replace(
        [begin = begin](const at::Tensor& of, const Context&) { return Dropout::slice_from(of, begin); });
    EXPECT_TRUE(
        at::equal(dropout.forward(x.narrow(1, begin, end - begin), context), whole.narrow(1, begin, end - begin)));
  }
}

TEST(Attention, DropsProbabilitiesAndEqualsTheFusedKernelWithout) {
  const auto make = [] { return at::randn({2, 3, 5, 4}, at::kDouble); };
  const auto q = make(), k = make(), v = make();
  const auto probabilities = at::softmax(at::matmul(q, k.transpose(-2, -1)) / 2.0, -1);
  Dropout none(0), half(0.5);
  half.set_path("attention");
  const Context train{.training = true, .seed = 1, .step = 0, .sample_ids = ids({4, 9})};
  EXPECT_LE((attention(q, k, v, none, train) - at::matmul(probabilities, v)).abs().max().item<double>(), 1e-13);
  EXPECT_LE((attention(q, k, v, half, {.training = false}) - at::matmul(probabilities, v)).abs().max().item<double>(),
            1e-13);
  const auto dropped = at::matmul(half.forward(probabilities, train), v);
  EXPECT_LE((attention(q, k, v, half, train) - dropped).abs().max().item<double>(), 1e-13);
  EXPECT_GE((dropped - at::matmul(probabilities, v)).abs().max().item<double>(), 1e-3);
}

}  // namespace
}  // namespace trireme::nn
