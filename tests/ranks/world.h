// The world of a multi-rank test program, and the device of its tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include "core/comm/world.h"
#include "tests/ranks/assertions.h"

namespace trireme::tests {

comm::World& world();

/// Options of tensors on this rank's device.
inline at::TensorOptions on(at::ScalarType type = at::kFloat) {
  return at::TensorOptions(type).device(world().device());
}

/// Whether each rank has its own GPU. Ranks that share one communicate through the host.
inline bool over_nccl() { return world().size() > 1 && world().transport().starts_with("NCCL"); }

}  // namespace trireme::tests

/// Skip a test where it does not apply: on GPUs if it measures the host's memory or clock, over NCCL if it is about
/// the transports of CPU tensors. GoogleTest counts and names the skipped tests.
#define TRIREME_ONLY_ON_CPU(why) \
  if (::trireme::tests::world().device().is_cuda()) GTEST_SKIP() << "only on CPU ranks: " << why
#define TRIREME_ONLY_OVER_MPI(why) \
  if (::trireme::tests::over_nccl()) GTEST_SKIP() << "not over NCCL: " << why
