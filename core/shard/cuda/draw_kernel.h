// The kernel that draws weights on a GPU. It includes no LibTorch header, because nvcc compiles those slowly.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/shard/distribution.h"

namespace trireme::shard {

/// Writes element full_begin + i of the stream `key` to out[local_begin + i], with the same bits as on the host. `runs`
/// [run_count, 3] is on the device and holds full_begin, local_begin, size of each run (Placement::Run); none has more
/// than `longest` elements. Returns the status of the launch.
cudaError_t draw_on_gpu(const Init& init, std::uint64_t key, const std::int64_t* runs, std::int64_t run_count,
                        std::int64_t longest, float* out, cudaStream_t stream);

}  // namespace trireme::shard
