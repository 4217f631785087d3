// MetaKernels: each rule's results and memory are those of the CPU's kernel.
#include "core/plan/meta_kernels.h"

#include <ATen/ATen.h>
#include <ATen/SDPBackend.h>
#include <gtest/gtest.h>
#include <torch/autograd.h>

#include <functional>
#include <optional>
#include <vector>

#include "core/base/memory.h"
#include "core/base/planned_device.h"
#include "core/nn/layers/gated_step.h"
#include "core/nn/layers/rms_norm_step.h"
#include "core/nn/layers/rotary_step.h"

namespace trireme::plan {
namespace {

using Tensors = std::vector<at::Tensor>;
using Use = std::function<Tensors(const Tensors&)>;

struct Measured {
  Tensors results;
  std::int64_t peak = 0;  ///< above what was held before
};

Tensors with_gradients(Tensors inputs) {
  for (auto& x : inputs)
    if (x.is_floating_point()) x.set_requires_grad(true);
  return inputs;
}

/// The same tensors without values.
Tensors on_meta(const Tensors& inputs) {
  Tensors shapes;
  for (const auto& x : inputs)
    shapes.push_back(x.defined() ? at::empty_strided(x.sizes(), x.strides(), x.options().device(at::kMeta)) : x);
  return shapes;
}

Measured measure(const Use& use, const Tensors& inputs, bool meta, bool gradients) {
  memory::Meter meter(meta ? at::kMeta : at::kCPU);
  const auto held = [&] { return meta ? PlannedDevice::current()->held() : memory::held(); };
  const auto leaves = gradients ? with_gradients(inputs) : inputs;
  Measured measured;
  const auto before = held();
  meter.reset();
  {
    const at::AutoGradMode mode(gradients);
    measured.results = use(leaves);
  }
  measured.peak = meter.peak() - before;
  return measured;
}

/// The bytes of the scalars that LibTorch makes tensors of, on the CPU.
constexpr double kScalars = 16;

struct Case {
  const char* name;
  Tensors inputs;
  Use use;
  double tolerance = 0;  ///< of the peak, as a part of the CPU's
  bool gradients = false;
};

/// The strides of dims with more than one element.
std::vector<std::int64_t> used_strides(const at::Tensor& x) {
  auto strides = x.strides().vec();
  for (std::int64_t d = 0; d < x.dim(); ++d)
    if (x.size(d) == 1) strides[static_cast<std::size_t>(d)] = 0;
  return strides;
}

void expect_alike(const Case& c) {
  static const bool counting = (memory::count(), true);
  ASSERT_TRUE(counting);
  measure(c.use, c.inputs, false, c.gradients);  // LibTorch's first call may hold more
  const auto real = measure(c.use, c.inputs, false, c.gradients);
  PlannedDevice planned(at::kCPU);
  const MetaKernels kernels;
  const auto meta = measure(c.use, on_meta(c.inputs), true, c.gradients);
  ASSERT_EQ(real.results.size(), meta.results.size()) << c.name;
  for (std::size_t i = 0; i < real.results.size(); ++i) {
    const auto &expected = real.results[i], &given = meta.results[i];
    ASSERT_EQ(expected.defined(), given.defined()) << c.name << ' ' << i;
    if (!expected.defined()) continue;
    EXPECT_TRUE(given.is_meta()) << c.name << ' ' << i;
    EXPECT_EQ(expected.sizes(), given.sizes()) << c.name << ' ' << i;
    EXPECT_TRUE(expected.numel() == 0 || used_strides(expected) == used_strides(given))
        << c.name << " " << i << ": " << given.strides() << ", not " << expected.strides();
    EXPECT_EQ(expected.dtype(), given.dtype()) << c.name << ' ' << i;
    EXPECT_EQ(expected.storage().nbytes(), given.storage().nbytes()) << c.name << ' ' << i;
  }
  EXPECT_NEAR(static_cast<double>(meta.peak), static_cast<double>(real.peak),
              kScalars + c.tolerance * static_cast<double>(real.peak))
      << c.name;
}

at::Tensor values(at::IntArrayRef shape, at::ScalarType dtype = at::kFloat) { return at::randn(shape).to(dtype); }
at::Tensor channels_last(const at::Tensor& x) { return x.contiguous(at::MemoryFormat::ChannelsLast); }

const std::vector<at::ScalarType> kDtypes{at::kFloat, at::kDouble, at::kBFloat16};

template <class... Parts>
Tensors list(std::tuple<Parts...> parts) {
  return std::apply([](auto&&... part) { return Tensors{part...}; }, parts);
}

TEST(MetaKernels, NormsHoldWhatTheCpuHolds) {
  for (const auto dtype : kDtypes) {
    for (const auto& x : {values({6, 5, 24}, dtype), values({5, 6, 24}, dtype).transpose(0, 1)})
      for (const auto parameters : {dtype, at::kFloat}) {
        if (parameters != dtype && dtype == at::kDouble) continue;
        expect_alike({"layer norm", {x, values({24}, parameters), values({24}, parameters)}, [](const Tensors& in) {
                        return list(at::native_layer_norm(in[0], {24}, in[1], in[2], 1e-5));
                      }});
        const auto statistics = at::isReducedFloatingType(dtype) && parameters == at::kFloat ? at::kFloat : dtype;
        for (const auto wanted : {std::array{true, true, true}, std::array{true, false, false}})
          expect_alike({"layer norm backward",
                        {values({6, 5, 24}, dtype), x, values({6, 5, 1}, statistics), values({6, 5, 1}, statistics),
                         values({24}, parameters), values({24}, parameters)},
                        [wanted](const Tensors& in) {
                          return list(
                              at::native_layer_norm_backward(in[0], in[1], {24}, in[2], in[3], in[4], in[5], wanted));
                        }});
      }
    for (const auto& x : {values({3, 8, 6, 5}, dtype), channels_last(values({3, 8, 6, 5}, dtype)),
                          values({8, 3, 6, 5}, dtype).transpose(0, 1)})
      for (const bool training : {true, false}) {
        const auto statistics = dtype == at::kBFloat16 ? at::kFloat : dtype;
        const auto channel = [&] { return values({8}, statistics).abs(); };
        expect_alike({"batch norm", {x, channel(), channel(), channel(), channel()}, [training](const Tensors& in) {
                        return list(at::native_batch_norm(in[0], in[1], in[2], in[3], in[4], training, 0.1, 1e-5));
                      }});
        expect_alike({"batch norm backward",
                      {x.clone(), x, channel(), channel(), channel(), channel(), channel()},
                      [training](const Tensors& in) {
                        return list(at::native_batch_norm_backward(in[0], in[1], in[2], in[3], in[4], in[5], in[6],
                                                                   training, 1e-5, {true, true, true}));
                      }});
        if (training)
          expect_alike(
              {"batch norm with update", {x, channel(), channel(), channel(), channel()}, [](const Tensors& in) {
                 auto mean = in[3], variance = in[4];
                 return list(at::_batch_norm_with_update(in[0], in[1], in[2], mean, variance, 0.1, 1e-5));
               }});
        if (!x.is_contiguous(x.suggest_memory_format())) continue;  // group norm refuses it
        expect_alike({"group norm", {x, channel(), channel()}, [](const Tensors& in) {
                        return list(at::native_group_norm(in[0], in[1], in[2], 3, 8, 30, 2, 1e-5));
                      }});
        expect_alike({"group norm backward",
                      {x.clone(), x, values({3, 2}, statistics), values({3, 2}, statistics), channel()},
                      [](const Tensors& in) {
                        return list(at::native_group_norm_backward(in[0], in[1], in[2], in[3], in[4], 3, 8, 30, 2,
                                                                   {true, true, true}));
                      }});
      }
  }
}

TEST(MetaKernels, OurOwnStepsHoldWhatTheCpuHolds) {
  for (const auto dtype : kDtypes) {
    const auto x = values({6, 5, 24}, dtype);
    for (const auto parameters : {dtype, at::kFloat}) {
      if (parameters != dtype && dtype == at::kDouble) continue;
      const auto weight = values({24}, parameters);
      for (const auto& residual : {at::Tensor(), values({6, 5, 24}, dtype), values({6, 5, 24}, parameters)})
        expect_alike({"rms norm", {x, residual, weight}, [](const Tensors& in) {
                        return list(
                            nn::rms_norm(in[0], in[1].defined() ? std::optional(in[1]) : std::nullopt, in[2], 1e-5));
                      }});
      const auto statistics = dtype == at::kDouble ? at::kDouble : at::kFloat;
      for (const auto wanted : {std::array{true, true}, std::array{true, false}, std::array{false, true}})
        expect_alike({"rms norm backward",
                      {values({6, 5, 24}, parameters), x, values({30}, statistics), weight},
                      [wanted](const Tensors& in) {
                        return list(nn::rms_norm_backward(in[0], in[1], in[1], in[2], in[3], wanted));
                      }});
    }
    for (const auto& heads : {values({3, 5, 4, 8}, dtype).transpose(1, 2), values({3, 2, 6, 8}, dtype)})
      expect_alike({"rotate", {heads, values({6, 8}, dtype), values({6, 8}, dtype)}, [](const Tensors& in) {
                      return Tensors{nn::rotate(in[0], in[1], in[2], false)};
                    }});
    expect_alike({.name = "gated product",
                  .inputs = {x, x.clone()},
                  .use =
                      [](const Tensors& in) {
                        const auto y = nn::silu_product(in[0], in[1]);
                        return torch::autograd::grad({y.sum()}, {in[0], in[1]});
                      },
                  .gradients = true});
  }
}

TEST(MetaKernels, PointwiseAndLookupsHoldWhatTheCpuHolds) {
  const auto ids = at::randint(7, {4, 5}, at::kLong);
  for (const auto dtype : kDtypes) {
    const auto x = values({4, 6, 5}, dtype), turned = values({5, 6, 4}, dtype).transpose(0, 2);
    for (const auto& y : {x, turned}) {
      const auto one = [&](const char* name, const std::function<at::Tensor(const at::Tensor&)>& use) {
        expect_alike({name, {y}, [use](const Tensors& in) { return Tensors{use(in[0])}; }});
      };
      one("relu", [](const at::Tensor& in) { return at::relu(in); });
      one("max", [](const at::Tensor& in) { return at::max(in); });
      one("isnan", [](const at::Tensor& in) { return at::isnan(in); });
      one("index select",
          [](const at::Tensor& in) { return in.index_select(-2, at::zeros({3}, in.options().dtype(at::kLong))); });
      expect_alike({"dropout", {y}, [](const Tensors& in) { return list(at::native_dropout(in[0], 0.1, true)); }});
      expect_alike({"dropout backward", {x, y.gt(0)}, [](const Tensors& in) {
                      return Tensors{at::native_dropout_backward(in[0], in[1], 1.1)};
                    }});
      expect_alike({"where", {y.gt(0), y, values({5}, at::kFloat)}, [](const Tensors& in) {
                      return Tensors{at::where(in[0], in[1], in[2])};
                    }});
      expect_alike({"mse backward", {values({}, dtype), x, y}, [](const Tensors& in) {
                      return Tensors{at::mse_loss_backward(in[0], in[1], in[2], 1)};
                    }});
      expect_alike({"adaptive pool", {y}, [](const Tensors& in) {
                      return Tensors{at::_adaptive_avg_pool2d(in[0], {3, 2})};
                    }});
    }
    for (const auto& gradient : {values({4, 5, 8}, dtype), values({8, 4, 5}, dtype).permute({1, 2, 0})})
      expect_alike({"embedding backward", {gradient, ids}, [](const Tensors& in) {
                      return Tensors{at::embedding_dense_backward(in[0], in[1], 7, -1, false)};
                    }});
  }
}

// Beside copies in other layouts, oneDNN's kernels have work buffers whose sizes are its own affair: of some megabytes
// at most, which is much of these small tensors.
TEST(MetaKernels, ConvolutionsHaveTheCpusShapes) {
  struct Shape {
    std::int64_t n, in, out, size, kernel, stride, padding;
  };
  const std::vector<Shape> shapes{{4, 64, 64, 28, 3, 1, 1}, {4, 64, 128, 28, 3, 2, 1}, {4, 64, 128, 28, 1, 2, 0},
                                  {4, 3, 64, 56, 7, 2, 3},  {4, 3, 192, 32, 4, 4, 0},  {1, 16, 20, 9, 3, 1, 1}};
  for (const auto& [dtype, tolerance] : {std::pair{at::kFloat, 0.3}, {at::kDouble, 0.001}, {at::kBFloat16, 1.0}})
    for (const auto& s : shapes)
      for (const bool last : {false, true}) {
        const auto format = [&](const at::Tensor& x) { return last ? channels_last(x) : x; };
        const auto x = format(values({s.n, s.in, s.size, s.size}, dtype)),
                   w = format(values({s.out, s.in, s.kernel, s.kernel}, dtype)), b = values({s.out}, dtype);
        expect_alike({"convolution",
                      {x, w, b},
                      [s](const Tensors& in) { return Tensors{at::conv2d(in[0], in[1], in[2], s.stride, s.padding)}; },
                      tolerance});
        const auto y = at::conv2d(x, w, b, s.stride, s.padding);
        const std::array<bool, 3> wanted{s.in > 3, true, true};  // an image wants no gradient
        expect_alike({"convolution backward",
                      {format(at::randn_like(y)), x, w},
                      [s, wanted](const Tensors& in) {
                        return list(at::convolution_backward(in[0], in[1], in[2], std::vector{s.out},
                                                             {s.stride, s.stride}, {s.padding, s.padding}, {1, 1},
                                                             false, {0, 0}, 1, wanted));
                      },
                      tolerance});
      }
}

TEST(MetaKernels, AttentionTakesTheCpusKernel) {
  const auto attend = [](const Tensors& in, bool causal) {
    const std::optional<at::Tensor> mask = in.size() > 3 ? std::optional(in[3].detach()) : std::nullopt;
    auto out = at::scaled_dot_product_attention(in[0], in[1], in[2], mask, 0, causal);
    auto results = torch::autograd::grad({out}, {in[0], in[1], in[2]}, {at::ones_like(out)});
    results.push_back(out.detach());
    return results;
  };
  // Threads that sum rows at one time, and the matrix products of half precision, hold some more.
  for (const auto& [dtype, tolerance] : {std::pair{at::kFloat, 0.01}, {at::kDouble, 0.01}, {at::kBFloat16, 0.3}})
    for (const std::int64_t tokens : {7, 201, 800})
      for (const bool by_token : {false, true}) {  // [B, T, H, D] transposed, as a layer makes them
        const auto part = [&] {
          return by_token ? values({2, tokens, 3, 8}, dtype).transpose(1, 2) : values({2, 3, tokens, 8}, dtype);
        };
        const auto mask = at::ones({2, 1, tokens, tokens}, at::kBool);
        const Tensors plain{part(), part(), part()};
        for (const bool causal : {false, true})
          expect_alike({"attention", plain, [&](const Tensors& in) { return attend(in, causal); }, tolerance, true});
        for (const auto& given : {mask, mask.to(dtype)})
          expect_alike({"attention with a mask",
                        {plain[0], plain[1], plain[2], given},
                        [&](const Tensors& in) { return attend(in, false); },
                        tolerance,
                        true});
        expect_alike({"the forward pass of attention", plain, [](const Tensors& in) {
                        return Tensors{at::scaled_dot_product_attention(in[0], in[1], in[2])};
                      }});
      }
}

TEST(MetaKernels, AttentionIsThePlannedDevices) {
  struct Choice {
    c10::DeviceType planned;
    at::ScalarType dtype;
    std::int64_t head_size;
    bool masked;
    at::SDPBackend expected;
  };
  using enum at::SDPBackend;
  const MetaKernels kernels;
  for (const auto& c : {Choice{c10::kCPU, at::kFloat, 8, false, flash_attention},
                        {c10::kCPU, at::kBFloat16, 7, true, flash_attention},
                        {c10::kCUDA, at::kBFloat16, 20, false, flash_attention},
                        {c10::kCUDA, at::kBFloat16, 64, true, efficient_attention},
                        {c10::kCUDA, at::kFloat, 64, false, efficient_attention},
                        {c10::kCUDA, at::kFloat, 62, false, math},
                        {c10::kCUDA, at::kDouble, 64, false, math}}) {
    const PlannedDevice planned(c.planned);
    const auto x = at::empty({2, 3, 5, c.head_size}, at::TensorOptions(c.dtype).device(at::kMeta)).requires_grad_();
    std::optional<at::Tensor> mask;
    if (c.masked) mask = at::empty({2, 3, 5, 5}, x.options().requires_grad(false));
    EXPECT_EQ(static_cast<at::SDPBackend>(at::_fused_sdp_choice(x, x, x, mask)), c.expected);
    const auto y = at::scaled_dot_product_attention(x, x, x, mask);
    EXPECT_EQ(y.sizes(), x.sizes());
    EXPECT_EQ(torch::autograd::grad({y}, {x}, {at::ones_like(y)}).front().sizes(), x.sizes());
  }
  const PlannedDevice planned(c10::kCPU);
  const auto x = at::empty({2, 3, 5, 8}, at::kMeta);
  at::globalContext().setSDPUseFlash(false);
  EXPECT_EQ(static_cast<at::SDPBackend>(at::_fused_sdp_choice(x, x, x)), math);
  at::globalContext().setSDPUseFlash(true);
}

/// The leaves' gradients of the sum of `forward`, in a step.
Use backward_of(const std::function<at::Tensor(const Tensors&)>& forward) {
  return [forward](const Tensors& in) {
    forward(in).sum().backward();
    Tensors gradients;
    for (const auto& x : in) gradients.push_back(x.grad().defined() ? x.grad() : at::Tensor());
    for (const auto& x : in) x.mutable_grad().reset();
    return gradients;
  };
}

TEST(MetaKernels, StepsOfModulesHoldWhatTheCpuHolds) {
  const auto image = channels_last(values({4, 3, 32, 32}));
  const std::vector<Case> steps{
      {"transformer",
       {values({2, 65, 24}), values({24}), values({24}), values({72, 24}), values({72}), values({96, 24}), values({96}),
        values({24, 96})},
       backward_of([](const Tensors& in) {
         const auto x = at::layer_norm(in[0], {24}, in[1], in[2]);
         const auto parts = at::linear(x, in[3], in[4]).unflatten(-1, {3, 3, 8}).permute({2, 0, 3, 1, 4}).unbind();
         const auto y = at::scaled_dot_product_attention(parts[0], parts[1], parts[2]).transpose(1, 2).flatten(2);
         return at::linear(at::dropout(at::gelu(at::linear(y + in[0], in[5], in[6])), 0.1, true), in[7]).square();
       }),
       0.02,
       true},
      {"convolutions",
       {values({4, 16, 32, 32}), values({32, 16, 3, 3}), values({32}), values({32}), values({32}), values({32}).abs()},
       backward_of([](const Tensors& in) {
         auto x = at::conv2d(in[0], in[1], {}, 1, 1);
         x = at::batch_norm(x, in[2], in[3], in[4].detach(), in[5].detach(), true, 0.1, 1e-5, false);
         return at::adaptive_avg_pool2d(at::max_pool2d(at::relu(x), 3, 2, 1), {2, 2});
       }),
       0.02,
       true},
      {"language model",
       {values({100, 24}), at::randint(100, {4, 16}, at::kLong)},
       backward_of([](const Tensors& in) {
         const auto x = at::embedding(in[0], in[1]);
         return at::cross_entropy_loss(at::matmul(x, in[0].t()).flatten(0, 1), in[1].flatten());
       }),
       0.02,
       true},
      {"AdamW",
       {values({500}), values({500}), values({500}), values({500}).abs(), at::zeros({})},
       [](const Tensors& in) {
         at::_fused_adamw_(in[0], in[1], in[2], in[3], {}, in[4], 1e-3, 0.9, 0.99, 0.01, 1e-8, false, false);
         return Tensors{in[0] + 1};
       }}};
  for (const auto& step : steps) expect_alike(step);
}

TEST(MetaKernels, ATensorThatGrowsCounts) {
  const PlannedDevice planned(c10::kCPU);
  const MetaKernels kernels;
  const auto x = at::empty({0}, at::kMeta);
  x.resize_({3, 5});
  EXPECT_EQ(planned.held(), 60);
  EXPECT_EQ(at::logical_not(x).strides(), (std::vector<std::int64_t>{5, 1}));
  EXPECT_EQ(planned.peak(), 75);
}

}  // namespace
}  // namespace trireme::plan
