#include "core/nn/cuda/packs.cuh"

namespace trireme::nn {
namespace {

constexpr int kWarp = 32;
constexpr int kThreadsOfARow = 128;  // each row has one block; a multiple of the warp size, for sum_over_block()

/// Returns the sum of all threads' values to every thread: first within each warp through registers, then over the sums
/// of the warps. `shared` has one element per warp.
template <class W>
__device__ W sum_over_block(W value, W* shared) {
  constexpr unsigned kAll = 0xffffffffU;
#pragma unroll
  for (int away = kWarp / 2; away > 0; away /= 2) value += __shfl_xor_sync(kAll, value, away);
  if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = value;
  __syncthreads();
  W sum = 0;
#pragma unroll
  for (int warp = 0; warp < kThreadsOfARow / kWarp; ++warp) sum += shared[warp];
  __syncthreads();  // before the next call writes to `shared`
  return sum;
}

template <class T, int kCount>
__global__ void add_norm(AddNormTensors t, wide_t<T> scale, wide_t<T> eps, NormShape shape) {
  using W = wide_t<T>;
  __shared__ W shared[kThreadsOfARow / kWarp];
  const auto width = static_cast<W>(shape.width);
  const auto* weight = static_cast<const T*>(t.weight);
  const auto* bias = static_cast<const T*>(t.bias);
  const std::int64_t first = threadIdx.x * kCount, step = kThreadsOfARow * kCount;
  for (std::int64_t row = blockIdx.x; row < shape.rows; row += gridDim.x) {
    const std::int64_t begin = row * shape.width;
    auto* sum = static_cast<T*>(t.sum) + begin;
    W part = 0;
    for (auto j = first; j < shape.width; j += step) {
      const auto pack =
          masked_sum<kCount>(static_cast<const T*>(t.x), t.mask, scale, static_cast<const T*>(t.residual), begin + j);
      store<kCount>(sum + j, pack);
#pragma unroll
      for (int k = 0; k < kCount; ++k) part += widened(pack.at[k]);  // rounded, as the backward pass sees it
    }
    const W mean = sum_over_block(part, shared) / width;
    part = 0;
    for (auto j = first; j < shape.width; j += step) {
      const auto pack = load<kCount>(static_cast<const T*>(sum) + j);
#pragma unroll
      for (int k = 0; k < kCount; ++k) {
        const W away = widened(pack.at[k]) - mean;
        part += away * away;
      }
    }
    const W rstd = 1 / sqrt(sum_over_block(part, shared) / width + eps);
    for (auto j = first; j < shape.width; j += step) {
      auto pack = load<kCount>(static_cast<const T*>(sum) + j);
      const auto factor = load<kCount>(weight + j), shift = load<kCount>(bias + j);
#pragma unroll
      for (int k = 0; k < kCount; ++k)
        pack.at[k] = narrowed<T>((widened(pack.at[k]) - mean) * rstd * widened(factor.at[k]) + widened(shift.at[k]));
      store<kCount>(static_cast<T*>(t.norm) + begin + j, pack);
    }
    if (threadIdx.x == 0) {
      static_cast<W*>(t.mean)[row] = mean;
      static_cast<W*>(t.rstd)[row] = rstd;
    }
  }
}

// With g = of_norm * weight and n = (sum - mean) * rstd, the sum's gradient is rstd * (g - mean(g) - n * mean(g n)).
template <class T, int kCount>
__global__ void add_norm_backward(AddNormGradients t, NormShape shape) {
  using W = wide_t<T>;
  __shared__ W shared[kThreadsOfARow / kWarp];
  const auto width = static_cast<W>(shape.width);
  const auto* weight = static_cast<const T*>(t.weight);
  const std::int64_t first = threadIdx.x * kCount, step = kThreadsOfARow * kCount;
  for (std::int64_t row = blockIdx.x; row < shape.rows; row += gridDim.x) {
    const std::int64_t begin = row * shape.width;
    const auto* gradient = static_cast<const T*>(t.of_norm) + begin;
    const auto* sum = static_cast<const T*>(t.sum) + begin;
    const W mean = static_cast<const W*>(t.mean)[row], rstd = static_cast<const W*>(t.rstd)[row];
    W of_all = 0, along = 0;
    for (auto j = first; j < shape.width; j += step) {
      const auto incoming = load<kCount>(gradient + j), factor = load<kCount>(weight + j), x = load<kCount>(sum + j);
#pragma unroll
      for (int k = 0; k < kCount; ++k) {
        const W g = widened(incoming.at[k]) * widened(factor.at[k]);
        of_all += g;
        along += g * (widened(x.at[k]) - mean) * rstd;
      }
    }
    of_all = sum_over_block(of_all, shared) / width;
    along = sum_over_block(along, shared) / width;
    for (auto j = first; j < shape.width; j += step) {
      auto pack = load<kCount>(gradient + j);
      const auto factor = load<kCount>(weight + j), x = load<kCount>(sum + j);
      Pack<T, kCount> beside{};
      if (t.of_sum != nullptr) beside = load<kCount>(static_cast<const T*>(t.of_sum) + begin + j);
#pragma unroll
      for (int k = 0; k < kCount; ++k) {
        const W g = widened(pack.at[k]) * widened(factor.at[k]);
        W out = rstd * (g - of_all - (widened(x.at[k]) - mean) * rstd * along);
        if (t.of_sum != nullptr) out += widened(beside.at[k]);
        pack.at[k] = narrowed<T>(out);
      }
      store<kCount>(static_cast<T*>(t.out) + begin + j, pack);
    }
  }
}

}  // namespace

cudaError_t add_norm_on_gpu(DType type, const AddNormTensors& t, double scale, double eps, const NormShape& shape,
                            cudaStream_t stream) {
  if (shape.rows == 0) return cudaSuccess;
  return with_type(type, shape.width, {t.x, t.residual, t.weight, t.bias, t.sum, t.norm}, t.mask,
                   [&](auto zero, auto pack) {
                     using T = decltype(zero);
                     add_norm<T, decltype(pack)::value><<<blocks_for(shape.rows), kThreadsOfARow, 0, stream>>>(
                         t, static_cast<wide_t<T>>(scale), static_cast<wide_t<T>>(eps), shape);
                   });
}

cudaError_t add_norm_backward_on_gpu(DType type, const AddNormGradients& t, const NormShape& shape,
                                     cudaStream_t stream) {
  if (shape.rows == 0) return cudaSuccess;
  return with_type(type, shape.width, {t.of_norm, t.of_sum, t.sum, t.weight, t.out}, nullptr,
                   [&](auto zero, auto pack) {
                     add_norm_backward<decltype(zero), decltype(pack)::value>
                         <<<blocks_for(shape.rows), kThreadsOfARow, 0, stream>>>(t, shape);
                   });
}

}  // namespace trireme::nn
