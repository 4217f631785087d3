// The world of a multi-rank test program, and where its tensors are.
#pragma once

#include <ATen/core/Tensor.h>

#include "core/comm/world.h"

namespace trireme::tests {

comm::World& world();

/// Of tensors on this rank's device.
inline at::TensorOptions on(at::ScalarType type = at::kFloat) {
  return at::TensorOptions(type).device(world().device());
}

/// Each rank has a GPU of its own. Ranks that share one send through the host, by MPI.
inline bool over_nccl() { return world().size() > 1 && world().transport().starts_with("NCCL"); }

}  // namespace trireme::tests

/// Leaves a test out where it says nothing: of the host's memory and clock on a GPU, and of MPI over NCCL. Both are
/// spoken: GoogleTest counts and names what was skipped.
#define TRIREME_ONLY_ON_CPU(why) \
  if (::trireme::tests::world().device().is_cuda()) GTEST_SKIP() << "means CPU ranks: " << why
#define TRIREME_ONLY_OVER_MPI(why) \
  if (::trireme::tests::over_nccl()) GTEST_SKIP() << "means MPI: " << why
