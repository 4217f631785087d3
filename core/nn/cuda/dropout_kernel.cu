#include "core/base/random.h"
#include "core/nn/cuda/dropout_kernel.h"

namespace trireme::nn {
namespace {

constexpr int kThreads = 256;

/// A thread draws one quad (four neighbouring elements of the full tensor) and writes those that are in the row.
__global__ void draw(std::uint64_t key, std::uint64_t threshold, const std::int64_t* sample_ids, MaskShape shape,
                     std::int64_t quads_a_row, std::int64_t rows, bool* mask) {
  const std::int64_t quads = shape.samples * rows * quads_a_row;
  for (std::int64_t at = blockIdx.x * static_cast<std::int64_t>(blockDim.x) + threadIdx.x; at < quads;
       at += static_cast<std::int64_t>(gridDim.x) * blockDim.x) {
    const std::int64_t sample = at / (rows * quads_a_row), row = at / quads_a_row % rows;
    const std::int64_t begin = shape.offset + row * shape.stride;  // index of the row's start in the full tensor
    const std::int64_t quad = begin / 4 + at % quads_a_row;
    const auto bits =
        random::philox(key, static_cast<std::uint64_t>(sample_ids[sample]), static_cast<std::uint64_t>(quad));
    for (int i = 0; i < 4; ++i) {
      const std::int64_t column = 4 * quad + i - begin, local = row * shape.row + column;
      if (column >= 0 && column < shape.row && local < shape.count)
        mask[sample * shape.count + local] = bits.v[i] >= threshold;
    }
  }
}

}  // namespace

cudaError_t draw_dropout_mask(std::uint64_t key, std::uint64_t threshold, const std::int64_t* sample_ids,
                              const MaskShape& shape, bool* mask, cudaStream_t stream) {
  // A row that does not begin at the first element of a quad spans one more quad.
  const std::int64_t quads_a_row = (shape.row + 3) / 4 + 1, rows = (shape.count + shape.row - 1) / shape.row;
  const std::int64_t quads = shape.samples * rows * quads_a_row;
  if (quads == 0) return cudaSuccess;
  constexpr std::int64_t kMostBlocks = 1 << 16;
  const std::int64_t wanted = (quads + kThreads - 1) / kThreads;
  const auto blocks = static_cast<unsigned>(wanted < kMostBlocks ? wanted : kMostBlocks);
  draw<<<blocks, kThreads, 0, stream>>>(key, threshold, sample_ids, shape, quads_a_row, rows, mask);
  return cudaGetLastError();
}

}  // namespace trireme::nn
