// Draws weights on a GPU. libtrireme_cuda registers this implementation when it is loaded.
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>

#include "core/shard/cuda/draw_kernel.h"
#include "core/shard/init.h"

namespace trireme::shard {
namespace {

void draw(const Init& init, std::uint64_t key, const std::vector<Placement::Run>& runs, const at::Tensor& out) {
  const c10::cuda::CUDAGuard guard(out.device());
  const auto count = static_cast<std::int64_t>(runs.size());
  const auto on_host = at::empty({count, 3}, at::TensorOptions(at::kLong).pinned_memory(true));
  auto* packed = on_host.mutable_data_ptr<std::int64_t>();
  std::int64_t longest = 0;
  for (const auto& run : runs) {
    *packed++ = run.full_begin;
    *packed++ = run.local_begin;
    *packed++ = run.size;
    longest = std::max(longest, run.size);
  }
  const auto on_device = on_host.to(out.device(), /*non_blocking=*/true);
  C10_CUDA_CHECK(draw_on_gpu(init, key, on_device.const_data_ptr<std::int64_t>(), count, longest,
                             out.mutable_data_ptr<float>(), c10::cuda::getCurrentCUDAStream()));
}

const bool drawing_registered = [] {
  register_draw_kernel(draw);
  return true;
}();

}  // namespace
}  // namespace trireme::shard
