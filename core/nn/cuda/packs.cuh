// Shared by the kernels of the fused steps: packs of 16 bytes, and the choice of a kernel by dtype and alignment. Only
// .cu files include this.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <type_traits>

#include "core/nn/cuda/fused_kernels.h"

namespace trireme::nn {
namespace {

constexpr std::int64_t kMostBlocks = 1 << 16;

/// The type in which sums are accumulated.
template <class T>
struct Wide {
  using type = float;
};
template <>
struct Wide<double> {
  using type = double;
};
template <class T>
using wide_t = typename Wide<T>::type;

__device__ float widened(float x) { return x; }
__device__ double widened(double x) { return x; }
__device__ float widened(__half x) { return __half2float(x); }
__device__ float widened(__nv_bfloat16 x) { return __bfloat162float(x); }
template <class T>
__device__ T narrowed(wide_t<T> x);
template <>
__device__ float narrowed<float>(float x) {
  return x;
}
template <>
__device__ double narrowed<double>(double x) {
  return x;
}
template <>
__device__ __half narrowed<__half>(float x) {
  return __float2half_rn(x);
}
template <>
__device__ __nv_bfloat16 narrowed<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}

/// The elements that a thread reads and writes at once: 16 bytes if all rows are aligned to that, else one element.
template <class T, int kCount>
struct alignas(sizeof(T) * kCount) Pack {
  T at[kCount];
};
template <class T>
constexpr int kWidest = 16 / sizeof(T);

template <int kCount, class T>
__device__ Pack<T, kCount> load(const T* from) {
  return *reinterpret_cast<const Pack<T, kCount>*>(from);
}
template <int kCount, class T>
__device__ void store(T* to, const Pack<T, kCount>& pack) {
  *reinterpret_cast<Pack<T, kCount>*>(to) = pack;
}

/// residual + x * mask * scale of one pack, rounded to T.
template <int kCount, class T>
__device__ Pack<T, kCount> masked_sum(const T* x, const bool* mask, wide_t<T> scale, const T* residual,
                                      std::int64_t i) {
  auto pack = load<kCount>(x + i);
  Pack<bool, kCount> keep{};
  Pack<T, kCount> beside{};
  if (mask != nullptr) keep = load<kCount>(mask + i);
  if (residual != nullptr) beside = load<kCount>(residual + i);
#pragma unroll
  for (int k = 0; k < kCount; ++k) {
    auto y = widened(pack.at[k]);
    if (mask != nullptr) y *= keep.at[k] ? scale : wide_t<T>(0);
    pack.at[k] = narrowed<T>(residual != nullptr ? widened(beside.at[k]) + y : y);
  }
  return pack;
}

inline unsigned blocks_for(std::int64_t wanted) {
  return static_cast<unsigned>(wanted < kMostBlocks ? wanted : kMostBlocks);
}

/// Whether each pointer is a multiple of `bytes`; null pointers are ignored.
inline bool aligned(std::size_t bytes, std::initializer_list<const void*> pointers) {
  for (const void* pointer : pointers)
    if (reinterpret_cast<std::uintptr_t>(pointer) % bytes != 0) return false;
  return true;
}

/// Calls the generic lambda `launch` with a zero of type T and, as an integral constant, the number of elements per
/// pack. Packs have more than one element when that number divides `width`, all `tensors` are aligned to 16 bytes and
/// the mask is aligned to one pack of bools.
template <class T, class Launch>
void with_pack(std::int64_t width, std::initializer_list<const void*> tensors, const bool* mask, const Launch& launch) {
  constexpr int kCount = kWidest<T>;
  if (width % kCount == 0 && aligned(16, tensors) && aligned(kCount, {mask}))
    launch(T{}, std::integral_constant<int, kCount>{});
  else
    launch(T{}, std::integral_constant<int, 1>{});
}
template <class Launch>
cudaError_t with_type(DType type, std::int64_t width, std::initializer_list<const void*> tensors, const bool* mask,
                      const Launch& launch) {
  switch (type) {
    case DType::f32:
      with_pack<float>(width, tensors, mask, launch);
      break;
    case DType::f64:
      with_pack<double>(width, tensors, mask, launch);
      break;
    case DType::f16:
      with_pack<__half>(width, tensors, mask, launch);
      break;
    case DType::bf16:
      with_pack<__nv_bfloat16>(width, tensors, mask, launch);
      break;
  }
  return cudaGetLastError();
}

}  // namespace
}  // namespace trireme::nn
