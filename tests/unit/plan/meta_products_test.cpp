// Work memory of half-precision kernels: oneDNN's products in bfloat16, and reductions that copy their input in float.
#include <ATen/ATen.h>
#include <ATen/native/CPUBlas.h>
#include <gtest/gtest.h>

#include <array>
#include <functional>

#include "core/base/memory.h"
#include "core/base/planned_device.h"
#include "core/plan/meta_kernels.h"

namespace trireme::plan {
namespace {

using Operator = std::function<at::Tensor(const at::Tensor&, const at::Tensor&)>;

/// The peak of one call above what was held before.
double peak_of_call(const Operator& call, const at::Tensor& a, const at::Tensor& b) {
  memory::Meter meter(a.device());
  const auto before = a.is_meta() ? PlannedDevice::current()->held() : memory::held();
  meter.reset();
  const auto result = call(a, b);
  return static_cast<double>(meter.peak() - before);
}

void expect_same_peak(const char* name, const at::Tensor& a, const at::Tensor& b, double tolerance,
                      const Operator& call) {
  static const bool counting = (memory::count(), true);
  ASSERT_TRUE(counting);
  peak_of_call(call, a, b);  // LibTorch's first call may hold more
  const auto expected = peak_of_call(call, a, b);
  PlannedDevice planned(at::kCPU);
  const MetaKernels kernels;
  const auto on_meta = [](const at::Tensor& x) {
    return at::empty_strided(x.sizes(), x.strides(), x.options().device(at::kMeta));
  };
  EXPECT_NEAR(peak_of_call(call, on_meta(a), on_meta(b)), expected, 256 + tolerance * expected)
      << name << ' ' << a.sizes() << ' ' << b.sizes();
}

TEST(MetaProducts, HoldTheBuffersOfBfloat16Products) {
  if (!at::native::cpublas::could_pack(at::kBFloat16)) GTEST_SKIP() << "the CPU has no matrix unit for bfloat16";
  const auto values = [](at::IntArrayRef shape) { return at::ones(shape, at::kBFloat16); };
  for (const auto [tokens, in, out] : {std::array{192, 64, 256}, std::array{192, 256, 64}, std::array{1040, 192, 96},
                                       std::array{2080, 96, 192}, std::array{1024, 128, 512}, std::array{8, 32, 10}}) {
    const auto x = values({tokens, in}), weight = values({out, in}), gradient = values({tokens, out});
    expect_same_peak("linear", x, weight, 0.05, [](const auto& a, const auto& b) { return at::linear(a, b); });
    expect_same_peak("with bias", x, weight, 0.05,
                     [](const auto& a, const auto& b) { return at::linear(a, b, b.select(1, 0).contiguous()); });
    expect_same_peak("input gradient", gradient, weight, 0.05,
                     [](const auto& a, const auto& b) { return at::mm(a, b); });
    // How many rows of a transposed factor oneDNN copies at a time is planned by a rule simpler than its own.
    expect_same_peak("weight gradient", gradient, x, 0.35,
                     [](const auto& a, const auto& b) { return at::mm(a.t(), b); });
  }
  expect_same_peak("batches", values({16, 48, 64}), values({16, 64, 48}), 0.05,
                   [](const auto& a, const auto& b) { return at::bmm(a, b); });
}

TEST(MetaProducts, ReductionsInFloatHoldTheirCopies) {
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const auto x = at::ones({4, 48, 64}, dtype);
    const auto expect = [&](const char* name, const std::function<at::Tensor(const at::Tensor&)>& reduce) {
      expect_same_peak(name, x, x, 0, [&](const at::Tensor& a, const at::Tensor&) { return reduce(a); });
    };
    expect("norm", [](const at::Tensor& a) { return at::linalg_vector_norm(a, 2, {}, false, at::kDouble); });
    expect("sum", [](const at::Tensor& a) { return a.sum(1); });
    expect("sum in float", [](const at::Tensor& a) { return a.sum(at::IntArrayRef{0, 1}, true, at::kFloat); });
    expect("mean", [](const at::Tensor& a) { return a.mean(1); });
    expect("mean of all", [](const at::Tensor& a) { return a.mean(); });
  }
}

}  // namespace
}  // namespace trireme::plan
