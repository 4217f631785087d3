// Machines: the files that the library holds, and what operators and messages take by their rates.
#include "core/plan/machine.h"

#include <gtest/gtest.h>

#include <cmath>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/plan/known_machines.h"

namespace trireme::plan {
namespace {

Machine simple() {
  Machine machine{.name = "", .ranks_per_host = 4, .alone = 1.5};
  machine.compute.product = {64, 512};
  machine.compute.tflops_fp32 = {1, 8};
  machine.compute.tflops_bf16 = {2, 16};
  machine.compute.attention = {0.5, 0.5, 0.25, 0.25};
  machine.compute.mb = {1, 100};
  machine.compute.copy_gb_per_s = {10, 1000};
  machine.inside = {.latency_us = 5, .gb_per_s = 10, .jitter_us = 4};
  machine.between = {.latency_us = 50, .gb_per_s = 1};
  return machine;
}

/// An m x k by a k x n product in fp32.
Work product(double m, double k, double n) {
  return {.kind = Kind::product, .flops = 2 * m * k * n, .bytes = 4 * (m * k + k * n + m * n)};
}

TEST(Machine, ThinProductsAreAsSlowAsSmallOnes) {
  const auto machine = simple();
  EXPECT_NEAR(product(64, 64, 64).size(), 64, 1e-9);
  EXPECT_NEAR(product(1e9, 43, 43).size(), 64.5, 1e-3);
  EXPECT_NEAR(machine.seconds(product(512, 512, 512)), 2 * 512. * 512 * 512 / 8e12, 1e-12);
  // Halfway in the logarithm: 181 is the geometric mean of 64 and 512, and sqrt(8) that of the rates.
  const double middle = std::sqrt(64. * 512);
  EXPECT_NEAR(machine.seconds(product(middle, middle, middle)), 2 * std::pow(middle, 3) / (std::sqrt(8.) * 1e12),
              1e-12);
  auto tf32 = product(512, 512, 512);
  tf32.tf32 = true;
  EXPECT_NEAR(machine.seconds(tf32), machine.seconds(product(512, 512, 512)), 1e-12);  // half of bf16 is no more
  auto faster = machine;
  faster.compute.tflops_bf16 = {8, 64};
  EXPECT_NEAR(faster.seconds(tf32), machine.seconds(product(512, 512, 512)) / 4, 1e-12);
  auto attention = product(512, 512, 512);
  attention.kind = Kind::attention;
  EXPECT_NEAR(machine.seconds(attention), 2 * machine.seconds(product(512, 512, 512)), 1e-12);
}

TEST(Machine, SmallTensorsTakeAsLongAsTheSmallestThatWereMeasured) {
  const auto machine = simple();
  const auto copy = [&](double bytes) { return machine.seconds(Work{.kind = Kind::copy, .bytes = bytes}); };
  EXPECT_NEAR(copy(1e6), 1e-4, 1e-12);
  EXPECT_NEAR(copy(1), copy(1e6), 1e-12);
  EXPECT_NEAR(copy(1e8), 1e-4, 1e-12);
  auto launching = machine;
  launching.compute.launch_us = 4;
  EXPECT_NEAR(launching.seconds(Work{.kind = Kind::view}), 4e-6, 1e-12);
  launching.device = "cuda";
  EXPECT_EQ(launching.seconds(Work{.kind = Kind::view}), 0);
}

TEST(Machine, KindsWithoutRatesTakeThoseOfTheNextOnes) {
  auto machine = simple();
  const auto seconds = [&](Kind kind, double flops = 0) {
    return machine.seconds(Work{.kind = kind, .flops = flops, .bytes = 1e6});
  };
  EXPECT_EQ(seconds(Kind::tanh), seconds(Kind::copy));
  machine.compute.activation_gb_per_s = {2};
  EXPECT_EQ(seconds(Kind::tanh), seconds(Kind::activation));
  EXPECT_EQ(seconds(Kind::fill), seconds(Kind::copy));
  machine.compute.tanh_gb_per_s = {1};
  EXPECT_EQ(seconds(Kind::tanh), 2 * seconds(Kind::activation));
  EXPECT_EQ(seconds(Kind::convolution_backward, 1e9), seconds(Kind::product, 1e9));
  machine.compute.convolution_tflops = {0.5};
  EXPECT_EQ(seconds(Kind::convolution_backward, 1e9), seconds(Kind::convolution, 1e9));
  machine.compute.convolution_backward_tflops = {0.25};
  EXPECT_EQ(seconds(Kind::convolution_backward, 1e9), 2 * seconds(Kind::convolution, 1e9));
}

TEST(Machine, MessagesTakeTheLinkOfTheirRanks) {
  const auto machine = simple();
  const struct {
    int rounds;
    std::vector<int> ranks;
    double microseconds, gb_per_s;
  } rows[] = {
      {2, {0, 3}, 2 * 5, 10},
      {1, {0, 1, 2, 3}, 3 * 5, 10},
      {2, {0, 4}, 2 * 50, 1},
      {1, {0, 4, 8, 12}, 3 * 50, 1},
      {2, {0, 4, 8, 12}, 2 * 2 * 50, 1},  // a tree
      {1, {0, 1, 4, 5}, 2 * 5 + 50, 2},   // a ring for each rank of a host
      {1, {0, 1, 2, 3, 4, 5, 6, 7}, 6 * 5 + 50, 4},
      {2, {0, 1, 2, 3, 4, 5, 6, 7}, 2 * (3 * 5 + 50), 4},
  };
  for (const auto& row : rows)
    EXPECT_NEAR(machine.seconds(1e6, row.rounds, row.ranks), 1e-6 * row.microseconds + 1e-3 / row.gb_per_s, 1e-12)
        << row.rounds << " " << row.ranks.size() << " " << row.ranks[1];
  EXPECT_NEAR(machine.skew(0.01, {0, 1}), std::sqrt(4e-6 * 0.01), 1e-12);
  EXPECT_EQ(machine.skew(0.01, {0, 4}), 0);
  EXPECT_NEAR(machine.crowding_of(1), 1 / 1.5, 1e-12);
  EXPECT_NEAR(machine.crowding_of(4), 1, 1e-12);
}

TEST(Machine, HoldsGpusByTheirNames) {
  for (const auto& [name, text] : known_machines()) {
    const auto machine = Machine::load(name);
    EXPECT_TRUE(machine.estimated && machine.has_rates()) << name;
    EXPECT_TRUE(machine.device == "cpu" || machine.memory_gb) << name;
    EXPECT_GE(machine.inside.gb_per_s, machine.between.gb_per_s) << name;
  }
  const std::pair<const char*, const char*> gpus[] = {
      {"NVIDIA H100 80GB HBM3", "H100"},
      {"NVIDIA H100 PCIe", "H100 PCIe"},
      {"NVIDIA A100-SXM4-80GB", "A100 SXM4 80GB"},
      {"NVIDIA A100 80GB PCIe", "A100 PCIe 80GB"},
      {"NVIDIA GeForce RTX 4090", "RTX 4090"},
      {"Tesla T4", "T4"},
      {"", "CPU"},
  };
  for (const auto& [gpu, name] : gpus) {
    const auto found = Machine::estimated_for(gpu);
    ASSERT_TRUE(found) << gpu;
    EXPECT_EQ(found->name, name);
  }
  EXPECT_FALSE(Machine::estimated_for("Quadro K600"));
  EXPECT_THROW(Machine::load("h100"), ConfigError);
}

}  // namespace
}  // namespace trireme::plan
