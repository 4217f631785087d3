#include "core/tune/switches.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/base/text.h"
#include "core/booster/booster.h"
#include "core/booster/kernel_choice.h"
#include "core/booster/precision.h"
#include "core/nn/block.h"
#include "core/nn/layers/kernels.h"

namespace trireme::tune {
namespace {

/// A switch with two choices.
Switch on_or_off(std::string name, const char* first, const char* second, const std::function<void(bool)>& set,
                 double share) {
  return {.name = std::move(name),
          .choices = {{first, [set] { set(false); }}, {second, [set] { set(true); }}},
          .share = share};
}

/// What the makers of the switches between kernels look at.
struct LayersOf {
  explicit LayersOf(const SwitchInputs& inputs)
      : run(*inputs.run),
        train(run.booster->options().train),
        counts(nn::count_kernel_layers(run.model->module())),
        kernels(chosen_kernels(run.model->module(), train, inputs.device)) {}
  /// Whether the layers' dtype lets steps be fused (can_fuse()), and the user has not set this key. Some plugins
  /// compute in 16 bits without autocast.
  [[nodiscard]] bool can_fuse(const std::optional<bool>& key, int layers) const {
    const auto parameters = nn::parameters(run.model->module());
    return layers > 0 && !key &&
           (parameters.empty() || parameters.front().value.scalar_type() == Precision::parse(train.precision).compute);
  }
  Boosted& run;
  const TrainOptions& train;
  nn::KernelLayerCounts counts;
  nn::Kernels kernels;
};

std::optional<Switch> attention(const SwitchInputs& inputs) {
  if (inputs.run == nullptr) return std::nullopt;
  const LayersOf layers(inputs);
  const auto& keys = layers.train.kernels;
  if (layers.counts.attention == 0 || layers.counts.attention_with_dropout > 0 || keys.attention_kernel ||
      keys.enable_flash_attention)
    return std::nullopt;
  Switch made{.name = "attention", .choices = {}, .share = 0.2};
  const auto add = [&](const char* name, nn::AttentionKernel kernel) {
    made.choices.push_back({name, [&run = layers.run, kernel] {
                              run.model->for_each_module(
                                  [kernel](nn::Model& model) { nn::choose_attention(model, kernel); });
                            }});
  };
  add("fastest", nn::AttentionKernel::fastest);
  add("math", nn::AttentionKernel::math);
  auto& model = layers.run.model->module();
  if (inputs.device.is_cuda())
    for (const auto& [name, kernel] : {std::pair{"flash", nn::AttentionKernel::flash},
                                       std::pair{"memory_efficient", nn::AttentionKernel::memory_efficient},
                                       std::pair{"cudnn", nn::AttentionKernel::cudnn}})
      if (has_attention_kernel(model, layers.train, inputs.device, kernel)) add(name, kernel);
  if (!has_attention_kernel(model, layers.train, inputs.device, nn::AttentionKernel::fastest)) return std::nullopt;
  return made;
}

std::optional<Switch> norms(const SwitchInputs& inputs) {
  if (inputs.run == nullptr) return std::nullopt;
  const LayersOf layers(inputs);
  if (layers.kernels.norm || !layers.can_fuse(layers.train.kernels.enable_fused_normalization, layers.counts.norm))
    return std::nullopt;
  return on_or_off(
      "norms", "separate", "fused",
      [&run = layers.run](bool on) { run.model->for_each_module([on](nn::Model& m) { nn::fuse_norms(m, on); }); }, 0.1);
}

std::optional<Switch> pointwise(const SwitchInputs& inputs) {
  if (inputs.run == nullptr) return std::nullopt;
  const LayersOf layers(inputs);
  if (layers.kernels.pointwise || !layers.can_fuse(layers.train.kernels.enable_jit_fused, layers.counts.pointwise))
    return std::nullopt;
  return on_or_off(
      "pointwise", "separate", "fused",
      [&run = layers.run](bool on) { run.model->for_each_module([on](nn::Model& m) { nn::fuse_pointwise(m, on); }); },
      0.15);
}

/// Of a CPU rank whose number of threads nobody has set.
std::optional<Switch> threads(const SwitchInputs& inputs) {
  const int now = at::get_num_threads();
  if (!inputs.device.is_cpu() || inputs.most_threads <= 1) return std::nullopt;
  Switch made{.name = "threads", .choices = {}};
  const auto add = [&](int count) {
    made.choices.push_back({std::to_string(count), [count] { at::set_num_threads(count); }});
  };
  add(now);
  for (int count = 1; count < inputs.most_threads; count *= 2)
    if (count != now) add(count);
  if (inputs.most_threads != now) add(inputs.most_threads);
  return made;
}

std::optional<Switch> onednn(const SwitchInputs& inputs) {
  if (!inputs.device.is_cpu() || !at::globalContext().userEnabledMkldnn() || !at::hasMKLDNN()) return std::nullopt;
  return on_or_off(
      "onednn", "on", "off", [](bool off) { at::globalContext().setUserEnabledMkldnn(!off); }, 0.7);
}

std::optional<Switch> cudnn_benchmark(const SwitchInputs& inputs) {
  if (!inputs.device.is_cuda() || at::globalContext().deterministicAlgorithms() || at::globalContext().benchmarkCuDNN())
    return std::nullopt;
  return on_or_off(
      "cudnn_benchmark", "off", "on", [](bool on) { at::globalContext().setBenchmarkCuDNN(on); }, 0.6);
}

std::optional<Switch> cublas(const SwitchInputs& inputs) {
  if (!inputs.device.is_cuda()) return std::nullopt;
  const auto before = at::globalContext().blasPreferredBackend();
  if (before == at::BlasBackend::Cublaslt) return std::nullopt;
  return on_or_off(
      "cublas", "default", "cublaslt",
      [before](bool lt) { at::globalContext().setBlasPreferredBackend(lt ? at::BlasBackend::Cublaslt : before); }, 0.5);
}

/// float32 products and convolutions in fewer bits: oneDNN's bf16 mode on a CPU, TF32 on a GPU.
std::optional<Switch> float32_products(const SwitchInputs& inputs) {
  if (inputs.run != nullptr && inputs.run->booster->options().train.precision != "fp32") return std::nullopt;
  using at::Float32Op, at::Float32Precision;
  auto& context = at::globalContext();
  const bool cpu = inputs.device.is_cpu();
  if (cpu && !at::hasMKLDNN()) return std::nullopt;
  const auto backend = cpu ? at::Float32Backend::MKLDNN : at::Float32Backend::CUDA;
  const auto products = context.float32Precision(backend, Float32Op::MATMUL);
  const auto convolutions = context.float32Precision(backend, Float32Op::CONV);
  const auto fewer_bits = cpu ? Float32Precision::BF16 : Float32Precision::TF32;
  if (products == fewer_bits && convolutions == fewer_bits) return std::nullopt;
  auto made = on_or_off(
      "float32_products", "default", cpu ? "bf16" : "tf32",
      [=, &context](bool fewer) {
        context.setFloat32Precision(backend, Float32Op::MATMUL, fewer ? fewer_bits : products);
        context.setFloat32Precision(backend, Float32Op::CONV, fewer ? fewer_bits : convolutions);
      },
      0);  // the last one: it is shown, and chosen only on request
  made.choices.back().changes_numbers = true;
  return made;
}

}  // namespace

std::string problem_of_candidates(const std::vector<std::string>& candidates, const std::vector<std::string>& known) {
  for (const auto& name : candidates) {
    const auto of_switch = name.substr(0, name.find('='));
    if (std::find(known.begin(), known.end(), of_switch) == known.end())
      return fmt::format("there is no switch \"{}\" (known: {}){}", of_switch, text::join(known),
                         text::did_you_mean(of_switch, known));
  }
  return "";
}

Switches all_switches() {
  Switches made{"switch"};
  made.add("attention", attention)
      .add("norms", norms)
      .add("pointwise", pointwise)
      .add("threads", threads)
      .add("onednn", onednn)
      .add("cudnn_benchmark", cudnn_benchmark)
      .add("cublas", cublas)
      .add("float32_products", float32_products);
  return made;
}

}  // namespace trireme::tune
