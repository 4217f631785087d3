// The kernel that draws dropout masks on a GPU. It includes no LibTorch header, because nvcc compiles those slowly.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace trireme::nn {

/// The elements of a sample's full tensor to draw, as in Elements (core/nn/layers/dropout_mask.h). @pre row, count > 0
struct MaskShape {
  std::int64_t samples, count, offset, row, stride;
};

/// Fills mask [samples, count] on the device with the bits that the host draws for the same key and samples.
/// `sample_ids` is on the device too. Returns the status of the launch.
cudaError_t draw_dropout_mask(std::uint64_t key, std::uint64_t threshold, const std::int64_t* sample_ids,
                              const MaskShape& shape, bool* mask, cudaStream_t stream);

}  // namespace trireme::nn
