// Measures each choice of kernels (core/nn/layers/kernels.h) in turn: forward and backward of an encoder layer of a ViT
// at 224 px. Prints JSON: for each choice the milliseconds of the fastest and of the median round.
//
//   kernels [cpu | cuda] [fp32 | fp64 | bf16 | fp16] [DROPOUT] [ROUNDS] [BATCH] [tiny | small | base | large]
//
// The defaults are 8 samples and a small ViT on a CPU. On a GPU they are 256 samples and a base ViT, with which the
// device is slower than the program that feeds it. There, the device's own events measure rounds that follow one
// another without a pause, and inputs take turns, so that none is still in a cache.
#include "core/nn/layers/kernels.h"

#include <ATen/Parallel.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/randn_like.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "core/base/trace.h"
#include "core/booster/precision.h"
#include "core/comm/world.h"
#include "core/nn/block.h"
#include "core/nn/layers/fused.h"
#include "core/nn/parameters.h"
#include "models/registry.h"
#include "models/vit/kind.h"

namespace trireme {
namespace {

/// A point in the work of a device: a CPU's is its time, a GPU's an event of its current stream.
class Mark {
 public:
  explicit Mark(c10::Device device) : seconds_(trace::now()) {
    if (device.is_cpu()) return;
    event_.emplace(device.type(), c10::EventFlag::BACKEND_DEFAULT);  // the default without times is PYTORCH_DEFAULT
    event_->record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  }
  void wait() const {
    if (event_) event_->synchronize();
  }
  /// @pre the device has finished the work before both
  [[nodiscard]] double ms_until(const Mark& end) const {
    return event_ ? event_->elapsedTime(*end.event_) : 1e3 * (end.seconds_ - seconds_);
  }

 private:
  double seconds_;
  std::optional<c10::Event> event_;
};

struct Choice {
  const char* name;
  nn::Kernels kernels;
  std::vector<std::pair<Mark, Mark>> rounds{};
};

struct Setting {
  std::string device = "cpu", precision = "fp32", size;
  double dropout = 0;
  int rounds = 20, batch = 0;
};

int run(Setting setting) {
  const auto world = comm::World::start(detect_launch(), {.device = setting.device});
  const auto device = world->device();
  const bool cpu = device.is_cpu();
  if (setting.size.empty()) setting.size = cpu ? "small" : "base";
  if (setting.batch == 0) setting.batch = cpu ? 8 : 256;
  const auto dtype = Precision::pure(setting.precision).parameters;
  models::vit::Options options;
  options.size = setting.size;
  options.num_layers = 3;
  options.dropout = setting.dropout;
  const auto kind = models::all_models().at("vit");
  kind->resolve(&options, {.inputs = {{"pixel_values", at::kFloat, {3, 224, 224}}}, .classes = 3});
  const auto model = kind->make(&options);
  nn::materialize(*model, 1, dtype, device);
  auto& block = *model->blocks().at(2);  // a middle layer; the last one computes the class token alone
  constexpr std::int64_t kTokens = 197;
  const nn::Context context{
      .training = true, .seed = 1, .sample_ids = at::arange(setting.batch).to(device), .tokens = kTokens};

  // Inputs and gradients together are larger than a GPU's last cache (50 MB on an H100).
  constexpr std::int64_t kAllInputs = 256 << 20;
  std::vector<std::pair<at::Tensor, at::Tensor>> inputs;
  for (std::int64_t bytes = 0; inputs.empty() || (!cpu && bytes < kAllInputs);) {
    const auto x = at::randn({setting.batch, kTokens, *options.hidden_size}, at::TensorOptions(dtype).device(device));
    bytes += 2 * static_cast<std::int64_t>(x.nbytes());
    inputs.emplace_back(x.clone().set_requires_grad(true), at::randn_like(x));
  }

  Choice choices[] = {{"plain", {}},
                      {"scores formed", {.attention = nn::AttentionKernel::math}},
                      {"fused norm", {.norm = true}},
                      {"fused pointwise", {.pointwise = true}},
                      {"both", {.norm = true, .pointwise = true}}};
  auto wanted = block.parameters();
  wanted.emplace_back();
  std::size_t next = 0;
  for (int round = -2; round < setting.rounds; ++round)
    for (auto& choice : choices) {
      nn::choose_kernels(*model, choice.kernels);
      const auto& [x, gradient] = inputs[next++ % inputs.size()];
      wanted.back() = x;
      Mark begin(device);
      torch::autograd::grad(block.forward({x}, context), wanted, {gradient});
      if (round >= 0) choice.rounds.emplace_back(std::move(begin), Mark(device));
    }
  Mark(device).wait();
  std::printf(
      "{\"device\": \"%s\", \"precision\": \"%s\", \"dropout\": %g, \"threads\": %d, \"rounds\": %d, \"batch\": %d, "
      "\"size\": \"%s\",\n \"ms\": {",
      device.str().c_str(), setting.precision.c_str(), setting.dropout, at::get_num_threads(), setting.rounds,
      setting.batch, setting.size.c_str());
  const char* separator = "";
  for (const auto& [name, kernels, rounds] : choices) {
    std::vector<double> ms;
    for (const auto& [begin, end] : rounds) ms.push_back(begin.ms_until(end));
    std::sort(ms.begin(), ms.end());
    std::printf("%s\n  \"%s\": [%.2f, %.2f]", separator, name, ms.front(), ms[ms.size() / 2]);
    separator = ",";
  }
  std::puts("}}");
  return 0;
}

Setting parse(int argc, char** argv) {
  Setting setting;
  if (argc > 1) setting.device = argv[1];
  if (argc > 2) setting.precision = argv[2];
  if (argc > 3) setting.dropout = std::atof(argv[3]);
  if (argc > 4) setting.rounds = std::atoi(argv[4]);
  if (argc > 5) setting.batch = std::atoi(argv[5]);
  if (argc > 6) setting.size = argv[6];
  if (setting.rounds < 1 || (argc > 5 && setting.batch < 1))
    throw std::invalid_argument("ROUNDS and BATCH are whole numbers from 1");
  return setting;
}

}  // namespace
}  // namespace trireme

int main(int argc, char** argv) try {
  return trireme::run(trireme::parse(argc, argv));
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 2;
}
