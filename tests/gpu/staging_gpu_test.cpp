// Copies of a GPU's tensors for a save in the background hold what the tensors were, although kernels that are launched
// at once change them. Without a GPU the test is skipped with a message.
#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <iostream>
#include <string>
#include <vector>

#include "core/checkpoint/host_staging.h"
#include "core/comm/devices.h"
#include "core/comm/world.h"

namespace trireme::checkpoint {
namespace {

TEST(StagingOnGpu, HoldsWhatTheTensorsWere) {
  if (comm::cuda_device_count() == 0) {
    std::cout << "NO GPU HERE: the copies were compiled and linked, and not run\n";
    return;
  }
  const auto world = comm::World::start(detect_launch(), {.device = "cuda"});
  std::vector<shard::Slice> tensors;
  for (int i = 0; i < 8; ++i) {
    auto value = at::randn({1024, 4096}, at::TensorOptions(world->device()));
    if (i % 2 == 1) value = value.t();
    tensors.push_back({shard::Placement::whole(std::to_string(i), value.sizes().vec()), value});
  }
  tensors.push_back({shard::Placement::whole("on the host", {1000}), at::randn({1000})});
  std::vector<at::Tensor> expected;
  for (const auto& tensor : tensors)
    expected.push_back(tensor.value.to(at::kCPU, /*non_blocking=*/false, /*copy=*/true));
  HostStaging staging;
  staging.reserve(HostStaging::bytes_for(tensors), world->device());
  for (int turn = 0; turn < 3; ++turn) {
    auto copies = tensors;
    staging.clear();
    staging.copy(copies);
    for (auto& tensor : tensors) tensor.value.add_(1);
    staging.wait();
    for (std::size_t i = 0; i < copies.size(); ++i) {
      EXPECT_TRUE(copies[i].value.is_cpu());
      EXPECT_TRUE(at::equal(copies[i].value, expected[i])) << copies[i].placement.name << ", turn " << turn;
      expected[i] = expected[i] + 1;
    }
  }
}

}  // namespace
}  // namespace trireme::checkpoint
