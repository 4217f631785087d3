// The kernel behind dropout masks on a GPU. No header of LibTorch: nvcc takes long over them.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace trireme::nn {

/// What of a sample's full tensor is drawn, as Elements (core/nn/dropout_mask.h) has it, row and count above 0.
struct MaskShape {
  std::int64_t samples, count, offset, row, stride;
};

/// mask [samples, count] on the device: the bits that the host draws for the same key and samples. `sample_ids` on the
/// device too. Returns what the launch says.
cudaError_t draw_dropout_mask(std::uint64_t key, std::uint64_t threshold, const std::int64_t* sample_ids,
                              const MaskShape& shape, bool* mask, cudaStream_t stream);

}  // namespace trireme::nn
