// Draws by name (contract C2): element e of parameter `name` depends only on (seed, name, e). A rank therefore draws
// only the slice that it owns, and every parallel layout starts from the same weights.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorOptions.h>

#include <cstdint>
#include <vector>

#include "core/shard/distribution.h"
#include "core/shard/placement.h"

namespace trireme::shard {

/// Returns the rank's slice, drawn in single precision on `device` and converted to `dtype`.
at::Tensor draw(const Init& init, std::uint64_t seed, const Placement& placement, at::ScalarType dtype,
                c10::Device device);

/// Draws into the caller's memory: `out` is contiguous and has placement.local_numel() elements.
void draw_into(const Init& init, std::uint64_t seed, const Placement& placement, const at::Tensor& out);

/// Draws `runs` of the stream `key` into `out` (float, contiguous, on a GPU), element full_begin + i to local_begin +
/// i. libtrireme_cuda registers one when it is loaded; without it the host draws the weights for a GPU.
using DrawOnDevice = void (*)(const Init& init, std::uint64_t key, const std::vector<Placement::Run>& runs,
                              const at::Tensor& out);
void register_draw_kernel(DrawOnDevice draw);

}  // namespace trireme::shard
