#include "core/train/report/flop_rate.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <exception>
#include <string_view>
#include <tuple>

#include "core/base/memory.h"
#include "core/base/text.h"
#include "core/base/verdict.h"
#include "core/comm/devices.h"
#include "core/nn/autograd/flops.h"
#include "core/nn/autograd/generator_state.h"
#include "core/nn/layers/kernels.h"
#include "core/plan/meta_kernels.h"

namespace trireme::train {
namespace {

/// Of each precision in TFLOP/s; 0: not computed, or not in the data sheet. fp64 is the tensor cores' where they have
/// it.
struct Peak {
  std::string_view name;
  double fp64, fp32, tf32, bf16, fp16;
};

// NVIDIA's data sheets, without sparsity. The first entry whose words are all in the device's name is taken.
constexpr std::array kPeaks{Peak{"GB200", 40, 80, 1250, 2500, 2500},
                            Peak{"B200", 37, 75, 1125, 2250, 2250},
                            Peak{"H200 NVL", 60, 60, 417.5, 835.5, 835.5},
                            Peak{"H200", 67, 67, 494.7, 989.4, 989.4},
                            Peak{"GH200", 67, 67, 494.7, 989.4, 989.4},
                            Peak{"H100 PCIe", 51, 51, 378, 756, 756},
                            Peak{"H100 NVL", 60, 60, 417.5, 835.5, 835.5},
                            Peak{"H100", 67, 67, 494.7, 989.4, 989.4},
                            Peak{"H800", 1, 67, 494.7, 989.4, 989.4},
                            Peak{"H20", 1, 44, 74, 148, 148},
                            Peak{"A100", 19.5, 19.5, 156, 312, 312},
                            Peak{"A800", 19.5, 19.5, 156, 312, 312},
                            Peak{"A40", 0, 37.4, 74.8, 149.7, 149.7},
                            Peak{"A30", 10.3, 10.3, 82, 165, 165},
                            Peak{"A10", 0, 31.2, 62.5, 125, 125},
                            Peak{"L40S", 0, 91.6, 183, 362, 362},
                            Peak{"L40", 0, 90.5, 90.5, 181, 181},
                            Peak{"L4", 0, 30.3, 60, 121, 121},
                            Peak{"V100S PCIE", 8.2, 16.4, 0, 0, 130},
                            Peak{"V100 PCIE", 7, 14, 0, 0, 112},
                            Peak{"V100", 7.8, 15.7, 0, 0, 125},
                            Peak{"T4", 0, 8.1, 0, 0, 65}};

/// One sample of the batch, without values.
at::Tensor sample_of(const at::Tensor& batch) {
  auto shape = batch.sizes().vec();
  shape.front() = 1;
  const auto type = batch.is_floating_point() ? at::kFloat : batch.scalar_type();  // as the parameters are declared
  return at::empty(shape, at::TensorOptions(type).device(at::kMeta));
}

}  // namespace

double sample_flops(nn::Model& model, const nn::NamedTensors& batch) {
  const at::NoGradGuard no_grad;
  nn::NamedTensors shapes;
  for (const auto& [name, input] : batch) shapes.set(name, sample_of(input));
  const plan::MetaKernels kernels;
  // Its separate operators all have kernels for the meta device.
  nn::choose_kernels(model, {.attention = nn::AttentionKernel::math});
  auto first = model.first_inputs(shapes);
  nn::Context context{.sample_ids = at::empty({1}, at::TensorOptions(at::kLong).device(at::kMeta))};
  context.tokens = model.tokens(first);
  context.side = model.side_inputs(shapes);
  const nn::FlopCounter counter;
  model.forward(std::move(first), context);
  return counter.flops();
}

std::optional<double> peak_tflops(const std::string& gpu, const std::string& precision) {
  for (const auto& peak : kPeaks) {
    if (!text::has_words(gpu, peak.name)) continue;
    for (const auto& [name, value] :
         {std::pair{"fp64", peak.fp64}, std::pair{"fp32", peak.fp32}, std::pair{"tf32", peak.tf32},
          std::pair{"bf16", peak.bf16}, std::pair{"fp16", peak.fp16}})
      if (precision == name && value > 0) return value;
    return std::nullopt;
  }
  return std::nullopt;
}

std::optional<double> peak_of_all(std::optional<double> tflops, const std::string& precision,
                                  const comm::World& world) {
  if (!tflops && world.rank() == 0 && world.device().is_cuda()) {
    tflops = peak_tflops(comm::cuda_device_name(world.device().index()), precision);
    if (tflops) *tflops /= world.ranks_per_device();
  }
  return tflops ? std::optional(*tflops * 1e12 * world.size()) : std::nullopt;
}

std::string rate_text(double flops_per_s, const std::optional<double>& mfu) {
  std::string_view unit = "MFLOP/s";
  double scale = 1e6;
  for (const auto& [larger, of] : {std::pair{"GFLOP/s", 1e9}, std::pair{"TFLOP/s", 1e12}, std::pair{"PFLOP/s", 1e15}})
    if (flops_per_s >= of) std::tie(unit, scale) = std::pair{std::string_view(larger), of};
  const auto rate = fmt::format("{:.1f} {}", flops_per_s / scale, unit);
  return mfu ? fmt::format("{} (MFU {:.1f} %)", rate, 100 * *mfu) : rate;
}

void FlopRate::count(const nn::NamedTensors& inputs) {
  is_counted_ = true;
  const memory::OfHost uncounted;  // a user's own modules have memory
  const nn::GeneratorStateGuard generators(at::kCPU);
  try {
    const auto model = make_();
    const auto first = model->first_inputs(inputs).front();
    for (const auto& [name, input] : inputs)
      if (input.is_same(first)) input_ = name;
    const auto forward = sample_flops(*model, inputs);
    if (forward > 0)
      per_element_ = 3 * forward * static_cast<double>(first.size(0)) / static_cast<double>(first.numel());
    if (forward == 0) problem_ = "it has no matrix product, convolution or attention of LibTorch";
  } catch (const std::exception&) {
    problem_ = verdict_on(std::current_exception()).message;
  }
}

std::optional<double> FlopRate::of_step(const data::StepBatch& batch) {
  double elements = 0;
  for (const auto& micro : batch.micro) {
    if (micro.size() == 0) continue;
    if (!is_counted_) count(micro.inputs);
    if (!per_element_) return std::nullopt;
    elements += static_cast<double>(micro.inputs[input_].numel());
  }
  if (batch.local_samples > 0) elements_a_sample_ = elements / static_cast<double>(batch.local_samples);
  if (!per_element_ || elements_a_sample_ == 0) return std::nullopt;
  return *per_element_ * elements_a_sample_ * static_cast<double>(batch.global_samples);
}

void FlopRate::add(double flops, double seconds) {
  if (++steps_ == 2) flops_ = seconds_ = 0;
  flops_ += flops;
  seconds_ += seconds;
}

std::optional<double> FlopRate::mean() const {
  return steps_ > 0 && seconds_ > 0 ? std::optional(flops_ / seconds_) : std::nullopt;
}

}  // namespace trireme::train
