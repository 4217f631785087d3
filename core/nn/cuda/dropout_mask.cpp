// Dropout masks on a GPU. libtrireme_cuda registers this kernel when it is loaded.
#include "core/nn/layers/dropout_mask.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <bit>

#include "core/nn/cuda/dropout_kernel.h"

namespace trireme::nn {
namespace {

void draw_on_cuda(at::Tensor& mask, const at::Tensor& sample_ids, std::int64_t key, std::int64_t threshold,
                  std::int64_t offset, std::int64_t row, std::int64_t stride) {
  const c10::cuda::CUDAGuard guard(mask.device());
  const auto ids =
      sample_ids.is_cuda() ? sample_ids.contiguous() : sample_ids.pin_memory().to(mask.device(), /*non_blocking=*/true);
  const MaskShape shape{ids.numel(), mask.size(1), offset, row, stride};
  C10_CUDA_CHECK(draw_dropout_mask(std::bit_cast<std::uint64_t>(key), static_cast<std::uint64_t>(threshold),
                                   ids.const_data_ptr<std::int64_t>(), shape, mask.mutable_data_ptr<bool>(),
                                   c10::cuda::getCurrentCUDAStream()));
}

}  // namespace
}  // namespace trireme::nn

TORCH_LIBRARY_IMPL(trireme, CUDA, library) { library.impl("draw_dropout_mask_", trireme::nn::draw_on_cuda); }
