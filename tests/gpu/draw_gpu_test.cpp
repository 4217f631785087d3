// Weights drawn on a GPU equal the host's bit for bit. Without a GPU the test is skipped with a message.
#include <gtest/gtest.h>

#include <iostream>

#include "core/comm/world.h"
#include "core/shard/init.h"

namespace trireme::shard {
namespace {

TEST(DrawOnGpu, EqualsTheHostBitForBit) {
  if (comm::cuda_device_count() == 0) {
    std::cout << "NO GPU HERE: the kernel was compiled and linked, and not run\n";
    return;
  }
  const auto world = comm::World::start(detect_launch(), {.device = "cuda"});  // loads libtrireme_cuda
  auto columns = Placement::whole("columns", {301, 77});
  columns.cut(1, {{1, 14}, {20, 21}, {33, 77}});
  const auto block = Placement(columns).cut(0, {{2, 5}, {7, 300}});
  auto flat = columns;
  flat.flat = Range{5, 9001};
  auto none = Placement::whole("none", {4});
  none.flat = Range{2, 2};
  for (const auto& init : {Init::normal(0.5, 2), Init::trunc_normal(0, 0.02), Init::uniform(-1, 3)})
    for (const auto& placement :
         {Placement::whole("one", {1}), Placement::whole("large", {1 << 21}), columns, block, flat, none})
      for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
        const auto host = draw(init, 7, placement, dtype, at::kCPU);
        const auto device = draw(init, 7, placement, dtype, world->device());
        EXPECT_TRUE(device.is_cuda());
        EXPECT_TRUE(device.cpu().equal(host)) << placement.name << ", " << at::toString(dtype);
      }
}

}  // namespace
}  // namespace trireme::shard
