// Dropout masks on a GPU. libtrireme_cuda registers this implementation when it is loaded.
#include "core/nn/dropout_mask.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>

#include "core/nn/cuda/dropout_kernel.h"

namespace trireme::nn {
namespace {

void draw(std::uint64_t key, std::uint64_t threshold, const at::Tensor& sample_ids, const Elements& elements,
          at::Tensor& mask) {
  const c10::cuda::CUDAGuard guard(mask.device());
  const auto ids =
      sample_ids.is_cuda() ? sample_ids.contiguous() : sample_ids.pin_memory().to(mask.device(), /*non_blocking=*/true);
  const MaskShape shape{ids.numel(), elements.count, elements.offset,
                        elements.row == 0 ? std::max<std::int64_t>(elements.count, 1) : elements.row, elements.stride};
  C10_CUDA_CHECK(draw_dropout_mask(key, threshold, ids.const_data_ptr<std::int64_t>(), shape,
                                   mask.mutable_data_ptr<bool>(), c10::cuda::getCurrentCUDAStream()));
}

const bool masks_registered = [] {
  draw_masks_by(draw);
  return true;
}();

}  // namespace
}  // namespace trireme::nn
