// The kernel that draws weights on a GPU. No header of LibTorch: nvcc takes long over them.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/shard/distribution.h"

namespace trireme::shard {

/// On the device: `runs` [run_count, 3], each full_begin, local_begin, size (Placement::Run), none above `longest`
/// elements; out[local_begin + i] is element full_begin + i of the stream `key`, the host's bits. Returns the launch's
/// result.
cudaError_t draw_on_gpu(const Init& init, std::uint64_t key, const std::int64_t* runs, std::int64_t run_count,
                        std::int64_t longest, float* out, cudaStream_t stream);

}  // namespace trireme::shard
