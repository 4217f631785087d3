// The GPU's fused kernels against LibTorch's on the host, in each dtype. Without a GPU the test is skipped with a
// message.
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <array>
#include <functional>
#include <iostream>

#include "core/comm/world.h"
#include "core/nn/layers/fused.h"

namespace trireme::nn {
namespace {

using List = std::vector<at::Tensor>;

struct Fusion {
  const char* name;
  std::function<List(const List& in)> step;  ///< of {x, residual, weight, bias, mask}
};
const Fusion kFusions[] = {{"bias_gelu", [](const List& in) { return List{bias_gelu(in[0] * 1, in[3])}; }},
                           {"masked_add", [](const List& in) { return List{masked_add(in[0], in[4], 1.25, in[1])}; }},
                           {"add_norm",
                            [](const List& in) {
                              const auto [sum, norm] = masked_add_norm(in[0], {}, 1, in[1], in[2], in[3], 1e-6);
                              return List{sum, norm};
                            }},
                           {"masked_add_norm", [](const List& in) {
                              const auto [sum, norm] = masked_add_norm(in[0], in[4], 1.25, in[1], in[2], in[3], 1e-6);
                              return List{sum, norm};
                            }}};

/// Returns outputs and gradients of the four inputs, on the host in double. Each tensor starts `offset` elements
/// into its memory, which decides whether 16 bytes can be read at once.
List run(const Fusion& fusion, const List& inputs, const List& gradients, c10::Device device, at::ScalarType dtype,
         std::int64_t offset) {
  const auto to_device = [&](const at::Tensor& x, at::ScalarType type) {
    auto memory = at::empty({x.numel() + offset}, at::TensorOptions(type).device(device));
    auto placed = memory.narrow(0, offset, x.numel()).view(x.sizes());
    placed.copy_(x);
    return placed.detach();
  };
  List leaves, incoming, found;
  for (std::size_t i = 0; i < 4; ++i) leaves.push_back(to_device(inputs[i], dtype).set_requires_grad(true));
  auto given = leaves;
  given.push_back(to_device(inputs[4], at::kBool));
  const auto made = fusion.step(given);
  for (std::size_t i = 0; i < made.size(); ++i) incoming.push_back(to_device(gradients[i], dtype));
  for (const auto& output : made) found.push_back(output.detach());
  for (auto& g : torch::autograd::grad(made, leaves, incoming, std::nullopt, false, true)) found.push_back(g);
  for (auto& t : found)
    if (t.defined()) t = t.cpu().to(at::kDouble);
  return found;
}

TEST(FusedOnGpu, EqualsTheHost) {
  if (comm::cuda_device_count() == 0) {
    std::cout << "NO GPU HERE: the kernels were compiled and linked, and not run\n";
    return;
  }
  const auto world = comm::World::start(detect_launch(), {.device = "cuda"});  // loads libtrireme_cuda
  ASSERT_TRUE(has_own_kernels(world->device()));
  for (const auto& fusion : kFusions)
    for (const auto& [dtype, bound] :
         {std::pair{at::kDouble, 1e-12}, {at::kFloat, 5e-6}, {at::kBFloat16, 3e-2}, {at::kHalf, 4e-3}})
      for (const auto& [rows, width, offset] : std::vector<std::array<std::int64_t, 3>>{{6, 384, 0},
                                                                                        {6, 384, 1},
                                                                                        {1, 3, 0},
                                                                                        {70000, 5, 0},
                                                                                        {70000, 8, 0},
                                                                                        {33, 1537, 0},
                                                                                        {9, 4096, 0},
                                                                                        {7, 200, 0},
                                                                                        {7, 768, 0},
                                                                                        {7, 1024, 0},
                                                                                        {5, 8192, 0},
                                                                                        {5, 9000, 0},
                                                                                        {0, 8, 0}}) {
        SCOPED_TRACE(testing::Message() << fusion.name << " " << dtype << " " << rows << " x " << width << " at "
                                        << offset);
        List inputs, gradients;
        for (int i = 0; i < 2; ++i) inputs.push_back(at::randn({1, rows, width}, at::kDouble).to(dtype));
        for (int i = 0; i < 2; ++i) inputs.push_back((at::randn({width}, at::kDouble) + 1).to(dtype));
        inputs.push_back(at::rand({1, rows, width}) > 0.2);
        for (int i = 0; i < 2; ++i) gradients.push_back(at::randn({1, rows, width}, at::kDouble).to(dtype));
        const auto got = run(fusion, inputs, gradients, world->device(), dtype, offset);
        const auto expected = run(fusion, inputs, gradients, at::kCPU, at::kDouble, 0);
        ASSERT_EQ(got.size(), expected.size());
        for (std::size_t i = 0; i < got.size(); ++i) {
          ASSERT_EQ(got[i].defined(), expected[i].defined());
          if (!got[i].defined() || got[i].numel() == 0) continue;
          const auto off = (got[i] - expected[i]).abs().max() / expected[i].abs().max().clamp_min(1);
          // Weight gradients are sums over many rows.
          EXPECT_LE(off.item<double>(), bound * (dtype == at::kDouble ? 1 : 4)) << "tensor " << i;
        }
      }
}

}  // namespace
}  // namespace trireme::nn
