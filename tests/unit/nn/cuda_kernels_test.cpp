// The GPU's fused kernels, compiled for the host and run there thread by thread, against LibTorch's in double
// precision: all dtypes, packs and single elements, rows that a warp, a block or neither keeps in registers.
#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/native_layer_norm_backward.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/nn/layers/gated_step.h"
#include "tests/unit/nn/host_cuda.h"
//
#include "core/nn/cuda/norm_kernels.cu"
#include "core/nn/cuda/pointwise_kernels.cu"

namespace trireme::nn {
namespace {

struct Type {
  DType type;
  at::ScalarType dtype, wide;
  double rounding;  ///< bound of an error, as a part of the largest value
};
const Type kTypes[] = {{DType::f64, at::kDouble, at::kDouble, 1e-13},
                       {DType::f32, at::kFloat, at::kFloat, 1e-6},
                       {DType::f16, at::kHalf, at::kFloat, 1. / (1 << 11)},
                       {DType::bf16, at::kBFloat16, at::kFloat, 1. / (1 << 8)}};

/// A tensor that starts `offset` elements into its memory. The memory around it must stay as it is.
struct Placed {
  static constexpr std::int64_t kMargin = 64;
  at::Tensor memory, tensor;

  Placed(at::IntArrayRef sizes, at::ScalarType dtype, std::int64_t offset)
      : memory(at::full({c10::multiply_integers(sizes) + 2 * kMargin}, 77, dtype)),
        tensor(memory.narrow(0, kMargin + offset, c10::multiply_integers(sizes)).view(sizes)) {}
  Placed(const at::Tensor& values, at::ScalarType dtype, std::int64_t offset) : Placed(values.sizes(), dtype, offset) {
    tensor.copy_(values);
  }
  void* data() const { return tensor.mutable_data_ptr(); }
  [[nodiscard]] at::Tensor values() const { return tensor.to(at::kDouble); }
  [[nodiscard]] bool margins_are_whole() const {
    auto rest = memory.clone();
    rest.narrow(0, tensor.storage_offset(), tensor.numel()).fill_(77);
    return rest.eq(77).all().item<bool>();
  }
};

void expect_near(const Placed& got, const at::Tensor& expected, double bound, const char* what) {
  EXPECT_TRUE(got.margins_are_whole()) << what;
  const auto largest = expected.abs().max().clamp_min(1);
  EXPECT_LE(((got.values() - expected).abs().max() / largest).item<double>(), bound) << what;
}

struct Case {
  std::int64_t rows, width, offset;
};

struct Inputs {
  Placed x, residual, weight, bias, mask, of_norm, of_sum;

  Inputs(const Type& type, const Case& c)
      : x(at::randn({c.rows, c.width}) * 2 + 1, type.dtype, c.offset),
        residual(at::randn({c.rows, c.width}) + 3, type.dtype, c.offset),
        weight(at::randn({c.width}) + 1, type.dtype, c.offset),
        bias(at::randn({c.width}), type.dtype, c.offset),
        mask(at::rand({c.rows, c.width}) > 0.2, at::kBool, c.offset),
        of_norm(at::randn({c.rows, c.width}), type.dtype, c.offset),
        of_sum(at::randn({c.rows, c.width}), type.dtype, c.offset) {}
};

void check_norm(const Type& type, const Case& c, bool masked) {
  const Inputs in(type, c);
  const Placed sum({c.rows, c.width}, type.dtype, c.offset), norm({c.rows, c.width}, type.dtype, c.offset);
  const Placed mean({c.rows}, type.wide, 0), rstd({c.rows}, type.wide, 0);
  const double scale = 1.25, eps = 1e-6;
  const auto* mask = masked ? in.mask.tensor.const_data_ptr<bool>() : nullptr;
  ASSERT_EQ(cudaSuccess, add_norm_on_gpu(type.type,
                                         {in.x.data(), in.residual.data(), in.weight.data(), in.bias.data(), mask,
                                          sum.data(), norm.data(), mean.data(), rstd.data()},
                                         scale, eps, {c.rows, c.width}, nullptr));
  const auto kept = masked ? in.mask.values() * scale : at::full({}, 1, at::kDouble);
  expect_near(sum, in.residual.values() + in.x.values() * kept, type.rounding, "sum");
  const auto weight = in.weight.values(), bias = in.bias.values();
  const auto [out, m, r] = at::native_layer_norm(sum.values(), {c.width}, weight, bias, eps);
  const double wide = type.dtype == at::kDouble ? 1e-13 : 1e-6;
  // Where a row's elements are nearly equal, its terms cancel and leave their rounding, times the reciprocal deviation.
  const double cancelled = r.max().item<double>() * wide;
  expect_near(norm, out, type.rounding + cancelled, "norm");
  // One column has no variance: 1 / sqrt(eps) enlarges what is left of the mean's rounding.
  expect_near(mean, m.flatten(), wide, "mean");
  expect_near(rstd, r.flatten(), 5 * wide, "rstd");

  for (const bool beside : {false, true}) {
    const Placed found({c.rows, c.width}, type.dtype, c.offset);
    ASSERT_EQ(cudaSuccess, add_norm_backward_on_gpu(type.type,
                                                    {in.of_norm.data(), beside ? in.of_sum.data() : nullptr, sum.data(),
                                                     mean.data(), rstd.data(), in.weight.data(), found.data()},
                                                    {c.rows, c.width}, nullptr));
    auto expected = std::get<0>(at::native_layer_norm_backward(in.of_norm.values(), sum.values(), {c.width}, m, r,
                                                               weight, bias, {true, false, false}));
    if (beside) expected += in.of_sum.values();
    expect_near(found, expected, type.rounding + 10 * cancelled, beside ? "gradient with the sum's" : "gradient");
  }
}

void check_pointwise(const Type& type, const Case& c) {
  const Inputs in(type, c);
  const auto count = c.rows * c.width;
  const auto out = [&] { return Placed({c.rows, c.width}, type.dtype, c.offset); };
  const auto sum = in.x.values() + in.bias.values();
  const auto gelu = out(), of_x = out(), added = out(), scaled = out();
  ASSERT_EQ(cudaSuccess,
            bias_gelu_on_gpu(type.type, in.x.data(), in.bias.data(), gelu.data(), count, c.width, nullptr));
  expect_near(gelu, at::gelu(sum), type.rounding, "gelu");
  ASSERT_EQ(cudaSuccess, bias_gelu_backward_on_gpu(type.type, in.of_norm.data(), in.x.data(), in.bias.data(),
                                                   of_x.data(), count, c.width, nullptr));
  expect_near(of_x, at::gelu_backward(in.of_norm.values(), sum), type.rounding, "gelu's gradient");
  const auto* mask = in.mask.tensor.const_data_ptr<bool>();
  ASSERT_EQ(cudaSuccess,
            masked_add_on_gpu(type.type, in.x.data(), mask, 1.25, in.residual.data(), added.data(), count, nullptr));
  expect_near(added, in.residual.values() + in.x.values() * in.mask.values() * 1.25, type.rounding, "masked sum");
  ASSERT_EQ(cudaSuccess, masked_add_on_gpu(type.type, in.x.data(), mask, 1.25, nullptr, scaled.data(), count, nullptr));
  expect_near(scaled, in.x.values() * in.mask.values() * 1.25, type.rounding, "masked");
}

void check_gate(const Type& type, const Case& c) {
  const Inputs in(type, c);
  const auto count = c.rows * c.width;
  const auto out = [&] { return Placed({c.rows, c.width}, type.dtype, c.offset); };
  const auto product = out(), of_gate = out(), of_up = out();
  const auto gate = in.x.values(), up = in.residual.values(), gradient = in.of_norm.values();
  ASSERT_EQ(cudaSuccess, gate_on_gpu(type.type, in.x.data(), in.residual.data(), product.data(), count, nullptr));
  expect_near(product, gate_by_operators(gate, up), type.rounding, "gated");
  ASSERT_EQ(cudaSuccess,
            gate_backward_on_gpu(type.type,
                                 {in.of_norm.data(), in.x.data(), in.residual.data(), of_gate.data(), of_up.data()},
                                 count, nullptr));
  const auto [expected_gate, expected_up] = gate_backward_by_operators(gradient, gate, up);
  expect_near(of_gate, expected_gate, type.rounding, "the gate's gradient");
  expect_near(of_up, expected_up, type.rounding, "its product's gradient");
}

TEST(CudaKernelsOnTheHost, EqualLibTorch) {
  at::manual_seed(1);
  std::vector<Case> cases{{1, 1, 0}, {0, 8, 0}, {9, 768, 1}, {300, 16, 0}};
  for (std::int64_t width = 1; width <= 40; ++width) cases.push_back({5, width, 0});
  for (const std::int64_t width : {256, 264, 512, 520, 767, 768, 776, 1024, 1025, 1032, 4096, 4104, 8192, 8200, 9001})
    cases.push_back({3, width, 0});
  for (const auto& type : kTypes)
    for (const auto& c : cases) {
      SCOPED_TRACE(testing::Message() << type.dtype << ", " << c.rows << " x " << c.width << " at " << c.offset);
      if (c.rows == 0) {
        EXPECT_EQ(cudaSuccess, add_norm_on_gpu(type.type, {}, 1, 1e-6, {0, c.width}, nullptr));
        continue;
      }
      check_norm(type, c, false);
      check_norm(type, c, true);
      check_pointwise(type, c);
      check_gate(type, c);
    }
}

}  // namespace
}  // namespace trireme::nn
