// Dropout masks drawn on a GPU equal the host's bit for bit. Without a GPU the test is skipped with a message.
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <iostream>

#include "core/comm/world.h"
#include "core/nn/layers/dropout_mask.h"

namespace trireme::nn {
namespace {

TEST(DropoutOnGpu, EqualsTheHostBitForBit) {
  if (comm::cuda_device_count() == 0) {
    std::cout << "NO GPU HERE: the kernel was compiled and linked, and not run\n";
    return;
  }
  const auto world = comm::World::start(detect_launch(), {.device = "cuda"});  // loads libtrireme_cuda
  const auto ids = at::tensor(std::vector<std::int64_t>{0, 3, 1LL << 40, 17}, at::kLong);
  for (const double p : {0.0, 0.1, 0.5, 0.999})
    for (const auto& elements :
         {Elements::all(1), Elements::all(1000), Elements{.count = 13, .offset = 5}, Elements{.count = 0},
          Elements{.count = 60, .offset = 7, .row = 10, .stride = 33},
          Elements{.count = 64, .offset = 64, .row = 4, .stride = 8}, Elements{.count = 200000, .offset = 3}}) {
      const auto host = dropout_mask(42, p, ids, elements, at::kCPU);
      const auto device = dropout_mask(42, p, ids, elements, world->device());
      EXPECT_TRUE(device.is_cuda());
      EXPECT_TRUE(device.cpu().equal(host)) << p << ", " << elements.count << " from " << elements.offset;
    }
}

}  // namespace
}  // namespace trireme::nn
