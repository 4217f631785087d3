// Matrix products on the meta device: LibTorch's shapes, and the work buffers of the CPU's products in bfloat16. These
// are oneDNN's kernels for the CPU's matrix unit, which copy blocks of the factors. The sizes are a rule fitted to
// measurements of the oneDNN in LibTorch 2.11 on a CPU with AMX, and exact for most shapes but not for all transposed
// factors. Products in float take no work buffers from the allocator of tensors.
#include <ATen/Parallel.h>
#include <ATen/native/CPUBlas.h>
#include <ATen/ops/addmm_meta_dispatch.h>
#include <ATen/ops/baddbmm_meta_dispatch.h>
#include <ATen/ops/bmm_meta_dispatch.h>
#include <ATen/ops/mm_meta_dispatch.h>

#include <algorithm>

#include "core/plan/meta_rules.h"

namespace trireme::plan {

std::int64_t product_buffer(std::int64_t m, std::int64_t n, std::int64_t k, bool transposed, std::int64_t threads) {
  constexpr std::int64_t kSmallest = 16 * 16 * 16;  // LibTorch multiplies smaller matrices itself
  constexpr std::int64_t kColumns = 64, kRows = 256, kDepth = 3072, kRowsDepth = 1024, kTiles = 4096;
  if (m * n * k <= kSmallest || !at::native::cpublas::could_pack(at::kBFloat16)) return 0;
  const auto blocks = [](std::int64_t size, std::int64_t block) { return (size + block - 1) / block; };
  const auto depth = blocks(k, 32) * 32;
  const bool ragged = k % 32 != 0;
  // Where one block of rows would leave threads idle, oneDNN takes smaller ones.
  auto rows = std::min(m, kRows);
  const auto balanced = [&](std::int64_t size) { return blocks(m, size) * blocks(n, kColumns) % threads == 0; };
  if (m <= kRows && m > kColumns && !balanced(m))
    for (const std::int64_t fewer : {64, 96, 128})
      if (fewer < m && balanced(fewer)) rows = fewer;
  if (threads == 1) rows = blocks(rows, kColumns) * kColumns;
  // Depths that have no even parts stay whole.
  const auto rows_depth = k % 128 == 0 ? std::min(depth, kRowsDepth) : depth / blocks(depth, kDepth);
  const auto second_factor = 2 * kColumns * std::min(depth, kDepth);
  const auto first_factor = transposed ? 2 * rows * rows_depth : ragged ? 1024 : 0;
  const auto sums = transposed && ragged ? 32 * std::min(k, kRowsDepth) : 0;
  return threads * (second_factor + first_factor + sums + kTiles + 640) + 384;
}

namespace {

using at::Scalar;
using at::Tensor;

/// Holds the buffer of a product, or of one of each batch, which the threads take in turns.
void hold_product_buffer(const Tensor& a, const Tensor& b) {
  if (a.scalar_type() != at::kBFloat16 || a.numel() == 0 || b.numel() == 0) return;
  work_buffer(a, {product_buffer(a.size(-2), b.size(-1), a.size(-1), a.stride(-1) != 1, at::get_num_threads())},
              at::kByte);
}

/// A kernel that makes what LibTorch's makes, beside the buffer of the product of the arguments `a` and `b`.
Tensor mm_beside_buffer(const Tensor& a, const Tensor& b) {
  auto result = at::meta::mm(a, b);
  hold_product_buffer(a, b);
  return result;
}
Tensor bmm_beside_buffer(const Tensor& a, const Tensor& b) {
  auto result = at::meta::bmm(a, b);
  hold_product_buffer(a, b);
  return result;
}
Tensor addmm_beside_buffer(const Tensor& c, const Tensor& a, const Tensor& b, const Scalar& beta, const Scalar& alpha) {
  auto result = at::meta::addmm(c, a, b, beta, alpha);
  hold_product_buffer(a, b);
  return result;
}
Tensor& addmm_in_place(Tensor& c, const Tensor& a, const Tensor& b, const Scalar& beta, const Scalar& alpha) {
  hold_product_buffer(a, b);
  return at::meta::addmm_(c, a, b, beta, alpha);
}
Tensor baddbmm_beside_buffer(const Tensor& c, const Tensor& a, const Tensor& b, const Scalar& beta,
                             const Scalar& alpha) {
  auto result = at::meta::baddbmm(c, a, b, beta, alpha);
  hold_product_buffer(a, b);
  return result;
}

}  // namespace

void add_product_rules(torch::Library& library) {
  library.impl("mm", mm_beside_buffer);
  library.impl("bmm", bmm_beside_buffer);
  library.impl("addmm", addmm_beside_buffer);
  library.impl("addmm_", addmm_in_place);
  library.impl("baddbmm", baddbmm_beside_buffer);
}

}  // namespace trireme::plan
