// Shared by the kernels of the fused steps: packs of 16 bytes, and the choice of a kernel by dtype and alignment. Only
// .cu files include this.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <type_traits>

#include "core/nn/cuda/fused_kernels.h"

namespace trireme::nn {
namespace {

constexpr int kWarp = 32;
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

template <class To, class From>
__device__ To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(static_cast<void*>(&to), &from, sizeof(to));
  return to;
}

/// The unsigned integer of so many bytes.
template <std::size_t kBytes>
using Bits = std::conditional_t<
    kBytes == 8, std::uint64_t,
    std::conditional_t<kBytes == 4, std::uint32_t, std::conditional_t<kBytes == 2, std::uint16_t, std::uint8_t>>>;

/// The elements that a thread reads and writes at once: 16 bytes if all rows are aligned to that, else one element.
/// They are held in 32-bit words. Of an array of elements, the compiler would often move each by an instruction of its
/// own, and spend a register on it.
template <class T, int kCount>
struct Pack {
  static constexpr int kBytes = sizeof(T) * kCount;
  std::uint32_t words[kBytes < 4 ? 1 : kBytes / 4] = {};

  __device__ T at(int k) const {
    if constexpr (sizeof(T) == 8)
      return bits_as<T>(static_cast<std::uint64_t>(words[2 * k + 1]) << 32 | words[2 * k]);
    else
      return bits_as<T>(static_cast<Bits<sizeof(T)>>(words[word(k)] >> shift(k)));
  }
  /// @pre the element is zero
  __device__ void set(int k, T value) {
    const auto bits = bits_as<Bits<sizeof(T)>>(value);
    if constexpr (sizeof(T) == 8) {
      words[2 * k] = static_cast<std::uint32_t>(bits);
      words[2 * k + 1] = static_cast<std::uint32_t>(bits >> 32);
    } else {
      words[word(k)] |= static_cast<std::uint32_t>(bits) << shift(k);
    }
  }

 private:
  static __device__ constexpr int word(int k) { return k * static_cast<int>(sizeof(T)) / 4; }
  static __device__ constexpr int shift(int k) { return 8 * (k * static_cast<int>(sizeof(T)) % 4); }
};
template <class T>
constexpr int kWidest = 16 / sizeof(T);

/// @pre `from` is a multiple of the pack's size; as in store()
template <int kCount, class T>
__device__ Pack<T, kCount> load(const T* from) {
  constexpr auto kBytes = Pack<T, kCount>::kBytes;
  if constexpr (kBytes == 16) {
    const auto v = *reinterpret_cast<const uint4*>(from);
    return {{v.x, v.y, v.z, v.w}};
  } else if constexpr (kBytes == 8) {
    const auto v = *reinterpret_cast<const uint2*>(from);
    return {{v.x, v.y}};
  } else {
    return {{*reinterpret_cast<const Bits<kBytes>*>(from)}};
  }
}
template <int kCount, class T>
__device__ void store(T* to, const Pack<T, kCount>& pack) {
  constexpr auto kBytes = Pack<T, kCount>::kBytes;
  const auto& w = pack.words;
  if constexpr (kBytes == 16)
    *reinterpret_cast<uint4*>(to) = {w[0], w[1], w[2], w[3]};
  else if constexpr (kBytes == 8)
    *reinterpret_cast<uint2*>(to) = {w[0], w[1]};
  else
    *reinterpret_cast<Bits<kBytes>*>(to) = static_cast<Bits<kBytes>>(w[0]);
}

/// A pack of each term of residual + x * mask * scale.
template <class T, int kCount>
struct Terms {
  Pack<T, kCount> x, residual;
  Pack<bool, kCount> mask;
};
template <class T>
struct TermPointers {
  const T* x;
  const bool* mask;   ///< null: all true
  const T* residual;  ///< null: zero
};
template <int kCount, class T>
__device__ Terms<T, kCount> load(const TermPointers<T>& from, std::int64_t i) {
  Terms<T, kCount> terms{load<kCount>(from.x + i), {}, {}};
  if (from.mask != nullptr) terms.mask = load<kCount>(from.mask + i);
  if (from.residual != nullptr) terms.residual = load<kCount>(from.residual + i);
  return terms;
}
/// The sum, rounded to T.
template <int kCount, class T>
__device__ Pack<T, kCount> sum_of(const Terms<T, kCount>& terms, const TermPointers<T>& from, wide_t<T> scale) {
  Pack<T, kCount> sum;
#pragma unroll
  for (int k = 0; k < kCount; ++k) {
    auto y = widened(terms.x.at(k));
    if (from.mask != nullptr) y *= terms.mask.at(k) ? scale : wide_t<T>(0);
    sum.set(k, narrowed<T>(from.residual != nullptr ? widened(terms.residual.at(k)) + y : y));
  }
  return sum;
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

#ifdef __CUDACC__
/// The one place with a compiler's launch: a test that runs the kernels on the host has its own.
template <class Kernel, class... Arguments>
void launch(Kernel* kernel, dim3 blocks, dim3 threads, cudaStream_t stream, const Arguments&... arguments) {
  kernel<<<blocks, threads, 0, stream>>>(arguments...);
}
#endif

/// Calls the generic lambda `run` with a zero of type T and, as an integral constant, the number of elements per
/// pack. Packs have more than one element when that number divides `width`, all `tensors` are aligned to 16 bytes and
/// the mask is aligned to one pack of bools.
template <class T, class Run>
void with_pack(std::int64_t width, std::initializer_list<const void*> tensors, const bool* mask, const Run& run) {
  constexpr int kCount = kWidest<T>;
  if (width % kCount == 0 && aligned(16, tensors) && aligned(kCount, {mask}))
    run(T{}, std::integral_constant<int, kCount>{});
  else
    run(T{}, std::integral_constant<int, 1>{});
}
template <class Run>
cudaError_t with_type(DType type, std::int64_t width, std::initializer_list<const void*> tensors, const bool* mask,
                      const Run& run) {
  switch (type) {
    case DType::f32:
      with_pack<float>(width, tensors, mask, run);
      break;
    case DType::f64:
      with_pack<double>(width, tensors, mask, run);
      break;
    case DType::f16:
      with_pack<__half>(width, tensors, mask, run);
      break;
    case DType::bf16:
      with_pack<__nv_bfloat16>(width, tensors, mask, run);
      break;
  }
  return cudaGetLastError();
}

}  // namespace
}  // namespace trireme::nn
