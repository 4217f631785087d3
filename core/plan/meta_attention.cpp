// Attention on the meta device: the choice of the kernel, and the shapes and buffers of those of the CPU and of CUDA.
#include <ATen/Context.h>
#include <ATen/OpMathType.h>
#include <ATen/Parallel.h>
#include <ATen/SDPBackend.h>
#include <ATen/core/grad_mode.h>
#include <ATen/native/CPUBlas.h>
#include <ATen/ops/_fused_sdp_choice_native.h>
#include <ATen/ops/_scaled_dot_product_attention_math.h>
#include <ATen/ops/_scaled_dot_product_efficient_attention.h>
#include <ATen/ops/_scaled_dot_product_flash_attention.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/pad.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <array>
#include <limits>
#include <tuple>

#include "core/plan/meta_rules.h"

namespace trireme::plan {
namespace {

using at::SDPBackend;
using at::Tensor;
using Mask = std::optional<Tensor>;
using Scale = std::optional<double>;

bool wants_gradient(const Tensor& q, const Tensor& k, const Tensor& v) {
  return at::GradMode::is_enabled() && (q.requires_grad() || k.requires_grad() || v.requires_grad());
}

/// As LibTorch chooses for CUDA: flash for half precision without a mask, memory-efficient for float or with one.
SDPBackend choose_for_cuda(const Tensor& q, const Tensor& k, const Tensor& v, const Mask& mask) {
  const auto& context = at::globalContext();
  const bool half = q.scalar_type() == at::kHalf || q.scalar_type() == at::kBFloat16;
  const bool dense =
      q.dim() == 4 && q.numel() > 0 && k.numel() > 0 && q.stride(-1) == 1 && k.stride(-1) == 1 && v.stride(-1) == 1;
  const bool flash =
      half && dense && !mask && q.size(-1) == k.size(-1) && q.size(-1) == v.size(-1) && q.size(-1) <= 256;
  if (flash && context.userEnabledFlashSDP()) return SDPBackend::flash_attention;
  const auto aligned = half ? 8 : 4;  // elements of 16 bytes
  const bool efficient =
      (half || q.scalar_type() == at::kFloat) && dense && q.size(-1) % aligned == 0 && v.size(-1) % aligned == 0;
  if (efficient && context.userEnabledMemEfficientSDP()) return SDPBackend::efficient_attention;
  if (context.userEnabledMathSDP()) return SDPBackend::math;
  if (half && dense && q.size(-1) % 8 == 0 && context.userEnabledCuDNNSDP()) return SDPBackend::cudnn_attention;
  TORCH_CHECK(false, "No available kernel for attention with these inputs and the kernels that are enabled.");
}

SDPBackend choose_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Mask& mask, double dropout,
                            bool causal, Scale scale, bool grouped) {
  if (stands_for(q) == c10::kCUDA) return choose_for_cuda(q, k, v, mask);
  return static_cast<SDPBackend>(
      at::native::_fused_sdp_choice_cpp(q, k, v, mask, dropout, causal, scale, grouped));  // reads shapes alone
}

/// The last dim padded with zeros to a multiple of 8, as the CUDA kernels want it.
Tensor pad_last_dim(const Tensor& x) { return x.size(-1) % 8 == 0 ? x : at::pad(x, {0, 8 - x.size(-1) % 8}); }

/// The mask of the memory-efficient kernel, whose rows begin at multiples of 8 elements.
Tensor aligned_mask(const Tensor& mask, const Tensor& q, const Tensor& k) {
  bool aligned = mask.stride(-1) == 1;
  for (std::int64_t d = 0; d + 1 < mask.dim(); ++d) aligned = aligned && mask.stride(d) % 8 == 0;
  const auto rows = aligned ? mask : at::pad(mask, {0, 8 - mask.size(-1) % 8}).narrow(-1, 0, mask.size(-1));
  return rows.expand({q.size(0), q.size(1), q.size(2), k.size(2)});
}

/// at::scaled_dot_product_attention as on the planned device; the chosen operator has the gradient.
Tensor attend_as_planned(const Tensor& q, const Tensor& k, const Tensor& v, const Mask& given, double dropout,
                         bool causal, Scale scale, bool grouped) {
  const auto choice = choose_attention(q, k, v, given, dropout, causal, scale, grouped);
  auto mask = given;
  if (mask && mask->scalar_type() == at::kBool)
    mask = at::zeros_like(*given, q.scalar_type())
               .masked_fill_(given->logical_not(), -std::numeric_limits<double>::infinity());
  if (choice == SDPBackend::math)
    return std::get<0>(
        at::_scaled_dot_product_attention_math(q, k, v, mask, dropout, causal, std::nullopt, scale, grouped));
  if (choice == SDPBackend::efficient_attention) {
    if (mask) mask = aligned_mask(*mask, q, k);
    return std::get<0>(
        at::_scaled_dot_product_efficient_attention(q, k, v, mask, wants_gradient(q, k, v), dropout, causal, scale));
  }
  if (stands_for(q) == c10::kCPU)
    return std::get<0>(at::_scaled_dot_product_flash_attention_for_cpu(q, k, v, dropout, causal, mask, scale));
  // cuDNN's kernel holds what the flash kernel holds.
  const auto out = std::get<0>(at::_scaled_dot_product_flash_attention(pad_last_dim(q), pad_last_dim(k),
                                                                       pad_last_dim(v), dropout, causal, false, scale));
  return out.size(-1) == q.size(-1) ? out : out.narrow(-1, 0, q.size(-1));
}

std::int64_t round_up(std::int64_t x, std::int64_t to) { return (x + to - 1) / to * to; }

/// The blocks of queries and keys that a thread of the CPU's flash kernel works on (FlashAttentionKernel.cpp).
struct FlashBlocks {
  FlashBlocks(const Tensor& q, const Tensor& k)
      : queries(std::min<std::int64_t>(q.size(2), q.size(2) >= 768   ? 256
                                                  : q.size(2) >= 192 ? 64
                                                                     : 32)),
        keys(std::min<std::int64_t>(k.size(2), 512)),
        reduced(at::isReducedFloatingType(q.scalar_type())),
        packed(reduced && k.size(2) >= 64 && at::native::cpublas::could_pack(q.scalar_type())),
        dtype(at::toOpMathType(q.scalar_type())) {}
  std::int64_t queries, keys, threads = at::get_num_threads();
  bool reduced, packed;  ///< packed: keys and values are copied in the layout of the matrix unit, in pairs of keys
  at::ScalarType dtype;
};

/// A tensor of these sizes [B, H, T, D] that is contiguous as [B, T, H, D].
Tensor token_major(const Tensor& like, std::int64_t tokens, std::int64_t features) {
  return at::empty({like.size(0), tokens, like.size(1), features}, like.options()).transpose(1, 2);
}
Tensor token_major(const Tensor& like) { return token_major(like, like.size(2), like.size(3)); }

std::tuple<Tensor, Tensor> flash_on_cpu(const Tensor& q, const Tensor& k, const Tensor&, double, bool, const Mask&,
                                        Scale) {
  const FlashBlocks block(q, k);
  auto out = at::empty_like(q);
  auto log_sum = at::empty({q.size(0), q.size(2), q.size(1)}, q.options().dtype(block.dtype)).transpose(1, 2);
  const auto scores = work_buffer(q, {block.threads, block.queries * (block.keys + 2 + q.size(3))}, block.dtype);
  const auto even = [&](std::int64_t keys) { return block.packed ? round_up(keys, 2) : keys; };
  const auto converted =
      work_buffer(q, {block.threads, block.queries, block.reduced ? even(block.keys) : 0}, q.scalar_type());
  if (!block.packed) return {out, log_sum};
  const auto whole = (k.size(2) - 1) / block.keys, tail = k.size(2) - whole * block.keys;
  const auto packed_tokens = k.size(2) + whole * even(block.keys) + even(tail);
  const auto packed = work_buffer(q, {q.size(0), q.size(1), packed_tokens, q.size(3)}, q.scalar_type());
  const auto turned = work_buffer(q, {block.threads, block.keys, q.size(3)}, q.scalar_type());
  return {out, log_sum};
}

std::tuple<Tensor, Tensor, Tensor> flash_on_cpu_backward(const Tensor& of_out, const Tensor& q, const Tensor& k,
                                                         const Tensor& v, const Tensor&, const Tensor&, double, bool,
                                                         const Mask&, Scale) {
  const FlashBlocks block(q, k);
  const auto contiguous = of_out.transpose(1, 2).contiguous();
  std::tuple gradients{token_major(q), token_major(k), token_major(v)};
  const auto scores = work_buffer(q, {block.threads, 2 * block.queries * block.keys}, block.dtype);
  const auto converted =
      work_buffer(q, {block.threads, block.reduced ? 2 * block.queries * block.keys : 0}, q.scalar_type());
  const auto threads = std::min(block.threads, q.size(0) * q.size(1));
  const auto row_sums = work_buffer(q, {threads, block.queries}, block.dtype);
  const auto product = q.scalar_type() != at::kBFloat16
                           ? 0
                           : std::max(product_buffer(block.keys, q.size(3), block.queries, true, block.threads),
                                      product_buffer(block.queries, q.size(3), block.keys, false, block.threads));
  const auto products = work_buffer(q, {threads, product}, at::kByte);
  return gradients;
}

std::tuple<Tensor, Tensor, Tensor, Tensor, c10::SymInt, c10::SymInt, Tensor, Tensor, Tensor> flash_on_cuda(
    const Tensor& q, const Tensor& k, const Tensor&, double, bool, bool, Scale) {
  const auto options = q.options();
  return {token_major(q),
          at::empty({q.size(0), q.size(1), q.size(2)}, options.dtype(at::kFloat)),
          Tensor(),
          Tensor(),
          q.size(2),
          k.size(2),
          at::empty({2}, options.dtype(at::kUInt64)),
          at::empty({}, options.dtype(at::kUInt64)),
          at::empty({0}, options)};
}

/// With the buffers of mha_bwd (flash_api.cpp): the gradient of the queries in float, and a sum by row.
std::tuple<Tensor, Tensor, Tensor> flash_on_cuda_backward(const Tensor&, const Tensor& q, const Tensor& k,
                                                          const Tensor& v, const Tensor&, const Tensor&, const Tensor&,
                                                          const Tensor&, std::int64_t, std::int64_t, double, bool,
                                                          const Tensor&, const Tensor&, Scale) {
  const auto tokens = round_up(q.size(2), 128), features = round_up(q.size(3), q.size(3) <= 128 ? 32 : 64);
  std::tuple gradients{token_major(q), token_major(k), token_major(v)};
  const auto options = q.options().dtype(at::kFloat);
  const auto sums = at::empty({q.size(0), q.size(1), tokens}, options);
  const auto of_queries = at::empty({q.size(0), tokens, q.size(1), features}, options);
  return gradients;
}

std::tuple<Tensor, Tensor, Tensor, Tensor> efficient_on_cuda(const Tensor& q, const Tensor&, const Tensor& v,
                                                             const Mask&, bool log_sums, double, bool, Scale) {
  const auto options = q.options();
  return {token_major(q, q.size(2), v.size(3)),
          at::empty({q.size(0), q.size(1), log_sums ? round_up(q.size(2), 32) : 0}, options.dtype(at::kFloat)),
          at::empty({}, options.dtype(at::kLong)), at::empty({}, options.dtype(at::kLong))};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> efficient_on_cuda_backward(const Tensor&, const Tensor& q, const Tensor& k,
                                                                      const Tensor& v, const Tensor& mask,
                                                                      const Tensor&, const Tensor&, const Tensor&,
                                                                      const Tensor&, double, std::array<bool, 4> wanted,
                                                                      bool, Scale) {
  return {token_major(q), token_major(k), token_major(v),
          wanted[3] && mask.defined() ? at::empty_like(mask) : Tensor()};
}

}  // namespace

void add_attention_rules(torch::Library& library, torch::Library& with_gradients) {
  library.impl("_fused_sdp_choice", [](const Tensor& q, const Tensor& k, const Tensor& v, const Mask& mask,
                                       double dropout, bool causal, Scale scale, bool grouped) {
    return static_cast<std::int64_t>(choose_attention(q, k, v, mask, dropout, causal, scale, grouped));
  });
  library.impl("scaled_dot_product_attention", attend_as_planned);
  with_gradients.impl("scaled_dot_product_attention", attend_as_planned);
  library.impl("_scaled_dot_product_flash_attention_for_cpu", flash_on_cpu);
  library.impl("_scaled_dot_product_flash_attention_for_cpu_backward", flash_on_cpu_backward);
  library.impl("_scaled_dot_product_flash_attention", flash_on_cuda);
  library.impl("_scaled_dot_product_flash_attention_backward", flash_on_cuda_backward);
  library.impl("_scaled_dot_product_efficient_attention", efficient_on_cuda);
  library.impl("_scaled_dot_product_efficient_attention_backward", efficient_on_cuda_backward);
}

}  // namespace trireme::plan
