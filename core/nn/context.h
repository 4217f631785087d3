// What a forward pass must know and no global may hold.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace trireme::nn {

using Tensors = std::vector<at::Tensor>;

struct Context {
  bool training = false;
  std::uint64_t seed = 0;   ///< of the run: dropout masks are keyed by (seed, step, layer, sample, element)
  std::int64_t step = 0;    ///< optimizer step, from 0
  at::Tensor sample_ids{};  ///< int64 [B] on the CPU: the global number of each sample of the batch
};

}  // namespace trireme::nn
