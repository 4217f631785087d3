// Fused steps against the steps one after the other, forward and backward, each gradient alone and all together.
#include "core/nn/layers/fused.h"

#include <ATen/TensorOperators.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <functional>
#include <memory>

#include "core/base/error.h"
#include "core/nn/autograd/split_backward.h"
#include "core/nn/layers/attention.h"
#include "core/nn/layers/gated_step.h"
#include "core/nn/layers/rms_norm.h"

namespace trireme::nn {
namespace {

using List = std::vector<at::Tensor>;
using Step = std::function<List(const List& inputs)>;

constexpr double kScale = 1.25, kEps = 1e-5;

List plain_gelu(const List& in) { return {at::gelu(in[0] + in[1])}; }
// bias_gelu() may reuse its input's memory.
List fused_gelu(const List& in) { return {bias_gelu(in[0] * 1, in[1])}; }

at::Tensor mask_for(const at::Tensor& x) {
  return at::arange(x.numel()).remainder(3).ne(1).view(x.sizes());  // every third is dropped
}
at::Tensor plain_sum(const List& in) { return in[1] + in[0] * mask_for(in[0]) * kScale; }
List plain_add(const List& in) { return {plain_sum(in)}; }
List fused_add(const List& in) { return {masked_add(in[0], mask_for(in[0]), kScale, in[1])}; }
List plain_unmasked(const List& in) { return {in[1] + in[0]}; }
List fused_unmasked(const List& in) { return {masked_add(in[0], {}, kScale, in[1])}; }

List norm_of(const at::Tensor& sum, const List& in) {
  return {sum, at::layer_norm(sum, in[2].sizes(), in[2], in[3], kEps)};
}
List plain_norm(const List& in) { return norm_of(in[1] + in[0], in); }
List plain_masked_norm(const List& in) { return norm_of(plain_sum(in), in); }
List fused_norm(const List& in, const at::Tensor& mask) {
  auto [sum, norm] = masked_add_norm(in[0], mask, kScale, in[1], in[2], in[3], kEps);
  return {sum, norm};
}

List plain_rms(const at::Tensor& sum, const at::Tensor& weight) {
  return {sum, sum * at::rsqrt(sum.square().mean(-1, true) + kEps) * weight};
}
std::shared_ptr<RmsNorm> rms_norm_with(const at::Tensor& weight) {
  const auto norm = std::make_shared<RmsNorm>(weight.numel(), kEps);
  *norm->declared().front().member = weight;  // with its graph
  return norm;
}
List fused_rms(const List& in) { return {rms_norm_with(in[1])->forward(in[0], {})}; }
List fused_rms_of_sum(const List& in) {
  auto [sum, norm] = rms_norm_with(in[2])->of_sum(in[1], in[0], {});
  return {sum, norm};
}

struct Fusion {
  const char* name;
  Step plain, fused;
  int wide, narrow;  ///< inputs of x's shape, and of its last dim's
};
const std::vector<Fusion>& fusions() {
  static const std::vector<Fusion> all{
      {"bias_gelu", plain_gelu, fused_gelu, 1, 1},
      {"masked_add", plain_add, fused_add, 2, 0},
      {"unmasked_add", plain_unmasked, fused_unmasked, 2, 0},
      {"add_norm", plain_norm, [](const List& in) { return fused_norm(in, {}); }, 2, 2},
      {"masked_add_norm", plain_masked_norm, [](const List& in) { return fused_norm(in, mask_for(in[0])); }, 2, 2},
      {"rms_norm", [](const List& in) { return List{plain_rms(in[0], in[1])[1]}; }, fused_rms, 1, 1},
      {"add_rms_norm", [](const List& in) { return plain_rms(in[1] + in[0], in[2]); }, fused_rms_of_sum, 2, 1},
      {"silu_product", [](const List& in) { return List{at::silu(in[0]) * in[1]}; },
       [](const List& in) { return List{silu_product(in[0], in[1])}; }, 2, 0}};
  return all;
}

using Shape = std::vector<std::int64_t>;
/// Multiples of a half, whose sums are exact in 16 bits too: a norm would enlarge what a sum rounds off.
List make_inputs(const Fusion& fusion, const Shape& shape, at::ScalarType dtype) {
  List inputs;
  for (int i = 0; i < fusion.wide; ++i) inputs.push_back(((4 * at::randn(shape, at::kDouble)).round() / 2).to(dtype));
  for (int i = 0; i < fusion.narrow; ++i) inputs.push_back((at::randn({shape.back()}, at::kDouble) + 1).to(dtype));
  return inputs;
}

/// The outputs that have a gradient, then the gradients of the inputs.
List run(const Step& step, const List& inputs, const List& gradients) {
  List leaves;
  for (const auto& input : inputs) leaves.push_back(input.detach().set_requires_grad(true));
  List made = step(leaves), used, incoming;
  for (std::size_t i = 0; i < made.size(); ++i)
    if (gradients[i].defined()) {
      used.push_back(made[i]);
      incoming.push_back(gradients[i]);
    }
  auto found = torch::autograd::grad(used, leaves, incoming, std::nullopt, false, /*allow_unused=*/true);
  for (auto& output : made) found.insert(found.begin(), output.detach());
  return found;
}

/// The largest difference, relative to the largest expected value or 1.
double off(const at::Tensor& got, const at::Tensor& expected) {
  EXPECT_EQ(got.defined(), expected.defined());
  if (!got.defined() || got.numel() == 0) return 0;
  EXPECT_EQ(got.sizes(), expected.sizes());
  EXPECT_TRUE(got.dim() < 2 || got.is_contiguous());
  const auto e = expected.to(at::kDouble);
  return ((got.to(at::kDouble) - e).abs().max() / e.abs().max().clamp_min(1)).item<double>();
}

TEST(Fused, EqualsTheSeparateSteps) {
  for (const auto& fusion : fusions())
    for (const auto& [dtype, bound] :
         {std::pair{at::kDouble, 1e-14}, {at::kFloat, 2e-6}, {at::kBFloat16, 3e-2}, {at::kHalf, 4e-3}})
      for (const Shape& shape :
           std::vector<Shape>{{2, 5, 8}, {3, 7, 33}, {1, 1, 3}, {2, 3, 1537}, {4, 0, 6}, {9, 17}}) {
        SCOPED_TRACE(testing::Message() << fusion.name << " " << dtype << " " << at::IntArrayRef(shape));
        const auto inputs = make_inputs(fusion, shape, dtype);
        List exact, gradients;
        for (const auto& input : inputs) exact.push_back(input.to(at::kDouble));
        const auto outputs = fusion.plain(inputs).size();
        for (std::size_t i = 0; i < outputs; ++i) gradients.push_back(at::randn(shape, at::kDouble).to(dtype));
        // First both outputs are used, then each alone.
        for (std::size_t unused = 0; unused <= (outputs > 1 ? outputs : 0); ++unused) {
          List given = gradients, exact_given;
          if (unused > 0) given[unused - 1] = at::Tensor();
          for (const auto& g : given) exact_given.push_back(g.defined() ? g.to(at::kDouble) : g);
          const auto got = run(fusion.fused, inputs, given), expected = run(fusion.plain, exact, exact_given);
          ASSERT_EQ(got.size(), expected.size());
          for (std::size_t i = 0; i < got.size(); ++i) {
            EXPECT_LE(off(got[i], expected[i]), bound) << "tensor " << i;
            if (got[i].defined()) {
              EXPECT_EQ(got[i].scalar_type(), dtype);
            }
          }
        }
      }
}

TEST(Fused, TakesTensorsOfAnyStrides) {
  for (const auto& fusion : fusions()) {
    auto inputs = make_inputs(fusion, {4, 6, 10}, at::kDouble), dense = inputs;
    for (auto& input : inputs)  // a transposed one, and one of every second element
      input = input.dim() == 1 ? at::randn({20}, at::kDouble).slice(0, 0, 20, 2)
                               : at::randn({10, 6, 4}, at::kDouble).transpose(0, 2);
    for (std::size_t i = 0; i < inputs.size(); ++i) dense[i] = inputs[i].contiguous();
    List gradients;
    for (std::size_t i = 0; i < fusion.plain(dense).size(); ++i)
      gradients.push_back(at::randn({6, 4, 10}, at::kDouble).transpose(0, 1));
    // The leaves have such strides; they are no dense copies.
    const auto got = run(fusion.fused, inputs, gradients), expected = run(fusion.plain, dense, gradients);
    for (std::size_t i = 0; i < got.size(); ++i)
      EXPECT_LE(off(got[i].contiguous(), expected[i].contiguous()), 1e-14) << fusion.name << " " << i;
  }
}

// A backward pass in two parts computes the gradients of inputs first, then those of weights. Only weight gradients may
// be deferred.
TEST(Fused, BackwardCanBeSplit) {
  for (const auto& fusion : fusions()) {
    const auto inputs = make_inputs(fusion, {3, 5, 12}, at::kDouble);
    List gradients, leaves;
    const auto outputs = fusion.plain(inputs).size();
    for (std::size_t i = 0; i < outputs; ++i) gradients.push_back(at::randn({3, 5, 12}, at::kDouble));
    const auto expected = run(fusion.plain, inputs, gradients);
    for (const auto& input : inputs) leaves.push_back(input.detach().set_requires_grad(true));
    const auto made = fusion.fused(leaves);
    std::vector<SplitBackward::Root> roots;
    for (std::size_t i = 0; i < outputs; ++i)
      roots.push_back({torch::autograd::impl::gradient_edge(made[i]), gradients[i]});
    SplitBackward pass(roots, List(leaves.begin(), leaves.begin() + fusion.wide));
    for (int i = 0; i < fusion.wide; ++i)
      EXPECT_LE(
          off(pass.input_gradients()[static_cast<std::size_t>(i)], expected[outputs + static_cast<std::size_t>(i)]),
          1e-14)
          << fusion.name;
    for (std::size_t i = static_cast<std::size_t>(fusion.wide); i < leaves.size(); ++i)
      EXPECT_FALSE(leaves[i].grad().defined());
    pass.accumulate_weights();
    for (std::size_t i = static_cast<std::size_t>(fusion.wide); i < leaves.size(); ++i)
      EXPECT_LE(off(leaves[i].grad(), expected[outputs + i]), 1e-14) << fusion.name;
  }
}

TEST(Fused, GeluIsExact) {
  const auto x = at::tensor(std::vector<double>{-3, -1, 0.5, 2}).view({1, 4});
  const auto y = bias_gelu(x.clone(), at::tensor(std::vector<double>{0, 0, 0, 0}));
  for (std::int64_t i = 0; i < 4; ++i) {
    const auto v = x[0][i].item<double>();
    EXPECT_NEAR(y[0][i].item<double>(), v * 0.5 * std::erfc(-v / std::sqrt(2.0)), 1e-15);
  }
}

TEST(Fused, NeedsOneTypeOneDeviceAndNoAutocast) {
  const auto f = at::rand({2}), d = at::rand({2}, at::kDouble), i = at::arange(2);
  EXPECT_TRUE(can_fuse({f, f}));
  EXPECT_FALSE(can_fuse({f, d}));
  EXPECT_FALSE(can_fuse({i, i}));
  EXPECT_FALSE(can_fuse({f, at::empty({2}, at::TensorOptions(at::kFloat).device(at::kMeta))}));
  at::autocast::set_autocast_enabled(at::kCPU, true);
  EXPECT_FALSE(can_fuse({f, f}));
  at::autocast::set_autocast_enabled(at::kCPU, false);
}

// Layers with fusion on and off, where it applies and where it does not.
TEST(Fused, LayersGiveTheSameFusedOrNot) {
  const Context train{
      .training = true, .seed = 1, .step = 2, .sample_ids = at::tensor(std::vector<std::int64_t>{4, 9})};
  for (const bool wide : {false, true}) {
    Linear linear({.in = 6, .out = 6, .activation = Activation::gelu});
    LayerNorm norm(6, 1e-6);
    Dropout dropout(0.3);
    dropout.set_path("dropout");
    linear.set_storage("weight", at::randn({6, 6}, at::kDouble));
    linear.set_storage("bias", at::randn({6}, at::kDouble));
    norm.set_storage("weight", at::randn({6}, at::kDouble));
    norm.set_storage("bias", at::randn({6}, at::kDouble));
    const auto x = at::randn({2, 3, 6}, at::kDouble);
    const auto residual = wide ? at::randn({2, 3, 6}, at::kDouble) : at::randn({1, 1, 6}, at::kDouble);
    const auto all = [&](bool fused) {
      linear.fuse(fused);
      norm.fuse(fused);
      dropout.fuse(fused);
      const auto [sum, normed] = norm.of_sum(residual, x, dropout, train);
      const auto deferred = linear.deferred_bias(x);
      EXPECT_EQ(deferred.defined(), fused);
      return List{sum, normed, linear.forward(x, train), dropout.add_to(residual, x, train),
                  norm.of_sum(residual, x, dropout, {.training = false}).norm};
    };
    const auto plain = all(false), fused = all(true);
    for (std::size_t i = 0; i < plain.size(); ++i) EXPECT_LE(off(fused[i], plain[i]), 1e-14) << i;
    // A policy's replacement takes precedence over fusion.
    dropout.forward.replace([](const at::Tensor& y, const Context&) { return y * 10; });
    EXPECT_LE(off(dropout.add_to(residual, x, train), residual + x * 10), 1e-15);
    EXPECT_LE(off(norm.of_sum(residual, x, dropout, train).sum, residual + x * 10), 1e-15);
    norm.forward.replace([](const at::Tensor& y, const Context&) { return y * 2; });
    EXPECT_LE(off(norm.of_sum(residual, x, dropout, train).norm, (residual + x * 10) * 2), 1e-15);
  }
}

// bf16 by autocast: x comes from a product, the residual and the weight are fp32.
TEST(Fused, RmsNormsTakeTwoDtypes) {
  const auto x = at::randn({2, 5, 33}).to(at::kBFloat16), residual = at::randn({2, 5, 33}), weight = at::rand({33}) + 1;
  const List gradients{at::randn({2, 5, 33}), at::randn({2, 5, 33})};
  const auto results = [&](const Step& step) {
    List leaves;
    for (const auto& input : {x, residual, weight}) leaves.push_back(input.detach().clone().set_requires_grad(true));
    const auto made = step(leaves);
    auto found = torch::autograd::grad(made, leaves, gradients);
    found.insert(found.end(), made.begin(), made.end());
    return found;
  };
  const auto got = results(fused_rms_of_sum);
  const auto expected = results([](const List& in) { return plain_rms(in[1] + in[0], in[2]); });
  for (std::size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].scalar_type(), expected[i].scalar_type()) << i;
    EXPECT_LE(off(got[i], expected[i]), i == 0 ? 1e-2 : 2e-6) << i;  // the gradient of x is bf16
  }
}

TEST(Fused, RmsNormsOfSumsKeepWhatAPolicyDoes) {
  const auto x = at::randn({2, 3, 6}, at::kDouble), residual = at::randn({1, 1, 6}, at::kDouble);
  const auto norm = rms_norm_with(at::rand({6}, at::kDouble));
  const auto wide = residual.expand({2, 3, 6}).contiguous();
  EXPECT_LE(off(norm->of_sum(residual, x, {})[1], norm->of_sum(wide, x, {})[1]), 1e-14);
  int wrapped = 0;
  norm->forward.wrap([&](const std::function<void()>& compute) {
    ++wrapped;
    compute();
  });
  (void)norm->of_sum(wide, x, {});
  EXPECT_EQ(wrapped, 1);
  EXPECT_THROW((void)norm->forward(at::randn({2, 5}, at::kDouble), {}), UsageError);
  norm->forward.replace([](const at::Tensor& y, const Context&) { return y * 2; });
  EXPECT_LE(off(norm->of_sum(wide, x, {})[1], (wide + x) * 2), 1e-15);
}

TEST(Fused, AttentionUsesTheChosenKernel) {
  const auto make = [] { return at::randn({2, 3, 5, 4}, at::kDouble); };
  const auto q = make(), k = make(), v = make();
  Dropout none(0);
  const auto by = [&](AttentionKernel kernel) { return attention(q, k, v, none, {}, {}, kernel).contiguous(); };
  const auto scores = by(AttentionKernel::math);
  EXPECT_LE(off(scores, by(AttentionKernel::fastest)), 1e-14);
  EXPECT_LE(off(scores, by(AttentionKernel::flash)), 1e-14);
  for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16})
    for (const auto& [wanted, name] : {std::pair{AttentionKernel::fastest, "flash"},
                                       {AttentionKernel::flash, "flash"},
                                       {AttentionKernel::memory_efficient, ""},
                                       {AttentionKernel::cudnn, ""},
                                       {AttentionKernel::math, ""}})
      EXPECT_EQ(attention_kernel(6, 197, 64, dtype, at::kCPU, wanted), name) << dtype;
  // A kernel that the device lacks is an error, and the choice ends with the call.
  EXPECT_THROW(by(AttentionKernel::memory_efficient), c10::Error);
  EXPECT_EQ(attention_kernel(6, 197, 64, at::kFloat, at::kCPU), "flash");
}

}  // namespace
}  // namespace trireme::nn
