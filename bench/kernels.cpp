// Measures each choice of kernels (core/nn/kernels.h) in turn: forward and backward of an encoder layer of a ViT-small
// at 224 px with 8 samples. Prints JSON: for each choice the milliseconds of the fastest and of the median round.
//
//   kernels [cpu | cuda] [fp32 | fp64 | bf16 | fp16] [DROPOUT] [ROUNDS]
#include "core/nn/kernels.h"

#include <ATen/Parallel.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/randn_like.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>

#include "core/base/trace.h"
#include "core/booster/precision.h"
#include "core/comm/world.h"
#include "core/nn/block.h"
#include "core/nn/fused.h"
#include "core/nn/parameters.h"
#include "models/registry.h"
#include "models/vit/options.h"

namespace trireme {
namespace {

struct Choice {
  const char* name;
  nn::Kernels kernels;
  std::vector<double> ms{};
};

std::unique_ptr<nn::Model> make_model(double dropout) {
  models::vit::Options options;
  options.size = "small";
  options.num_layers = 3;
  options.dropout = dropout;
  const auto kind = models::all_models().at("vit");
  kind->resolve(&options, {.inputs = {{"pixel_values", at::kFloat, {3, 224, 224}}}, .classes = 3});
  return kind->make(&options);
}

int run(int argc, char** argv) {
  const std::string device = argc > 1 ? argv[1] : "cpu", precision = argc > 2 ? argv[2] : "fp32";
  const double dropout = argc > 3 ? std::atof(argv[3]) : 0;
  const int rounds = argc > 4 ? std::atoi(argv[4]) : 20;
  const auto world = comm::World::start(comm::detect(), {.device = device});
  const auto dtype = Precision::pure(precision).parameters;
  const auto model = make_model(dropout);
  nn::materialize(*model, 1, dtype, world->device());
  auto& block = *model->blocks().at(2);  // a middle layer; the last one computes the class token alone
  const nn::Context context{.training = true, .seed = 1, .sample_ids = at::arange(8), .tokens = 197};
  const auto x = at::randn({8, 197, 384}, at::TensorOptions(dtype).device(world->device())).set_requires_grad(true);
  const auto gradient = at::randn_like(x);
  std::vector<at::Tensor> inputs = block.parameters();
  inputs.push_back(x);

  std::vector<Choice> choices{{"plain", {}},
                              {"scores formed", {.attention = nn::AttentionKernel::math}},
                              {"fused norm", {.norm = true}},
                              {"fused pointwise", {.pointwise = true}},
                              {"both", {.norm = true, .pointwise = true}}};
  trace::start(world->device());  // so that synchronize() waits for the device
  for (int round = -2; round < rounds; ++round)
    for (auto& choice : choices) {
      nn::choose_kernels(*model, choice.kernels);
      trace::synchronize();
      const double begin = trace::now();
      torch::autograd::grad(block.forward({x}, context), inputs, {gradient});
      trace::synchronize();
      if (round >= 0) choice.ms.push_back(1e3 * (trace::now() - begin));
    }
  std::printf(
      "{\"device\": \"%s\", \"precision\": \"%s\", \"dropout\": %g, \"threads\": %d, \"rounds\": %d,\n \"ms\": {",
      world->device().str().c_str(), precision.c_str(), dropout, at::get_num_threads(), rounds);
  const char* separator = "";
  for (auto& [name, kernels, ms] : choices) {
    std::sort(ms.begin(), ms.end());
    std::printf("%s\n  \"%s\": [%.2f, %.2f]", separator, name, ms.front(), ms[ms.size() / 2]);
    separator = ",";
  }
  std::puts("}}");
  return 0;
}

}  // namespace
}  // namespace trireme

int main(int argc, char** argv) try { return trireme::run(argc, argv); } catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 2;
}
