#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "core/nn/cuda/fused_kernels.h"

namespace trireme::nn {
namespace {

constexpr int kThreads = 256;        // elementwise
constexpr int kThreadsOfARow = 128;  // one block a row; a power of two, for sum_over_block()
constexpr std::int64_t kMostBlocks = 1 << 16;

/// What sums are made in.
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

/// P(normal <= x)
__device__ float below(float x) { return 0.5F * (1 + erff(x * 0.70710678118654752440F)); }
__device__ double below(double x) { return 0.5 * (1 + erf(x * 0.70710678118654752440)); }
__device__ float density(float x) { return 0.39894228040143267794F * expf(-0.5F * x * x); }
__device__ double density(double x) { return 0.39894228040143267794 * exp(-0.5 * x * x); }

__device__ std::int64_t first_element() { return blockIdx.x * static_cast<std::int64_t>(blockDim.x) + threadIdx.x; }
__device__ std::int64_t elements_at_once() { return static_cast<std::int64_t>(gridDim.x) * blockDim.x; }

template <class T>
__global__ void bias_gelu(const T* x, const T* bias, T* out, std::int64_t count, std::int64_t width) {
  for (auto i = first_element(); i < count; i += elements_at_once()) {
    const wide_t<T> y = widened(x[i]) + widened(bias[i % width]);
    out[i] = narrowed<T>(y * below(y));
  }
}

template <class T>
__global__ void bias_gelu_backward(const T* gradient, const T* x, const T* bias, T* out, std::int64_t count,
                                   std::int64_t width) {
  for (auto i = first_element(); i < count; i += elements_at_once()) {
    const wide_t<T> y = widened(x[i]) + widened(bias[i % width]);
    out[i] = narrowed<T>(widened(gradient[i]) * (below(y) + y * density(y)));
  }
}

/// residual + x * mask * scale of one element.
template <class T>
__device__ wide_t<T> masked_sum(const T* x, const bool* mask, wide_t<T> scale, const T* residual, std::int64_t i) {
  auto y = widened(x[i]);
  if (mask != nullptr) y *= mask[i] ? scale : wide_t<T>(0);
  return residual != nullptr ? widened(residual[i]) + y : y;
}

template <class T>
__global__ void masked_add(const T* x, const bool* mask, wide_t<T> scale, const T* residual, T* out,
                           std::int64_t count) {
  for (auto i = first_element(); i < count; i += elements_at_once())
    out[i] = narrowed<T>(masked_sum(x, mask, scale, residual, i));
}

/// The sum of every thread's value, for all of them. `shared`: one a thread.
template <class W>
__device__ W sum_over_block(W value, W* shared) {
  shared[threadIdx.x] = value;
  __syncthreads();
  for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) shared[threadIdx.x] += shared[threadIdx.x + half];
    __syncthreads();
  }
  const W sum = shared[0];
  __syncthreads();  // before the next one writes
  return sum;
}

template <class T>
__global__ void add_norm(AddNormTensors t, wide_t<T> scale, wide_t<T> eps, NormShape shape) {
  using W = wide_t<T>;
  __shared__ W shared[kThreadsOfARow];
  const auto width = static_cast<W>(shape.width);
  const auto* weight = static_cast<const T*>(t.weight);
  const auto* bias = static_cast<const T*>(t.bias);
  for (std::int64_t row = blockIdx.x; row < shape.rows; row += gridDim.x) {
    const std::int64_t begin = row * shape.width;
    auto* sum = static_cast<T*>(t.sum) + begin;
    W part = 0;
    for (std::int64_t j = threadIdx.x; j < shape.width; j += blockDim.x) {
      sum[j] = narrowed<T>(
          masked_sum(static_cast<const T*>(t.x), t.mask, scale, static_cast<const T*>(t.residual), begin + j));
      part += widened(sum[j]);  // as rounded: backward sees it so
    }
    const W mean = sum_over_block(part, shared) / width;
    part = 0;
    for (std::int64_t j = threadIdx.x; j < shape.width; j += blockDim.x) {
      const W away = widened(sum[j]) - mean;
      part += away * away;
    }
    const W rstd = 1 / sqrt(sum_over_block(part, shared) / width + eps);
    for (std::int64_t j = threadIdx.x; j < shape.width; j += blockDim.x)
      static_cast<T*>(t.norm)[begin + j] =
          narrowed<T>((widened(sum[j]) - mean) * rstd * widened(weight[j]) + widened(bias[j]));
    if (threadIdx.x == 0) {
      static_cast<W*>(t.mean)[row] = mean;
      static_cast<W*>(t.rstd)[row] = rstd;
    }
  }
}

// With g = of_norm * weight and n = (sum - mean) * rstd:  rstd * (g - mean(g) - n * mean(g n)) comes to the sum.
template <class T>
__global__ void add_norm_backward(AddNormGradients t, NormShape shape) {
  using W = wide_t<T>;
  __shared__ W shared[kThreadsOfARow];
  const auto width = static_cast<W>(shape.width);
  const auto* weight = static_cast<const T*>(t.weight);
  for (std::int64_t row = blockIdx.x; row < shape.rows; row += gridDim.x) {
    const std::int64_t begin = row * shape.width;
    const auto* gradient = static_cast<const T*>(t.of_norm) + begin;
    const auto* sum = static_cast<const T*>(t.sum) + begin;
    const W mean = static_cast<const W*>(t.mean)[row], rstd = static_cast<const W*>(t.rstd)[row];
    W of_all = 0, along = 0;
    for (std::int64_t j = threadIdx.x; j < shape.width; j += blockDim.x) {
      const W g = widened(gradient[j]) * widened(weight[j]);
      of_all += g;
      along += g * (widened(sum[j]) - mean) * rstd;
    }
    of_all = sum_over_block(of_all, shared) / width;
    along = sum_over_block(along, shared) / width;
    for (std::int64_t j = threadIdx.x; j < shape.width; j += blockDim.x) {
      const W g = widened(gradient[j]) * widened(weight[j]);
      W out = rstd * (g - of_all - (widened(sum[j]) - mean) * rstd * along);
      if (t.of_sum != nullptr) out += widened(static_cast<const T*>(t.of_sum)[begin + j]);
      static_cast<T*>(t.out)[begin + j] = narrowed<T>(out);
    }
  }
}

unsigned blocks_for(std::int64_t wanted) { return static_cast<unsigned>(wanted < kMostBlocks ? wanted : kMostBlocks); }
unsigned blocks_of_elements(std::int64_t count) { return blocks_for((count + kThreads - 1) / kThreads); }

/// launch(zero of the type): a generic lambda.
template <class Launch>
cudaError_t with_type(Numbers type, const Launch& launch) {
  switch (type) {
    case Numbers::f32:
      launch(float{});
      break;
    case Numbers::f64:
      launch(double{});
      break;
    case Numbers::f16:
      launch(__half{});
      break;
    case Numbers::bf16:
      launch(__nv_bfloat16{});
      break;
  }
  return cudaGetLastError();
}

}  // namespace

cudaError_t bias_gelu_on_gpu(Numbers type, const void* x, const void* bias, void* out, std::int64_t count,
                             std::int64_t width, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  return with_type(type, [&](auto zero) {
    using T = decltype(zero);
    bias_gelu<T><<<blocks_of_elements(count), kThreads, 0, stream>>>(
        static_cast<const T*>(x), static_cast<const T*>(bias), static_cast<T*>(out), count, width);
  });
}

cudaError_t bias_gelu_backward_on_gpu(Numbers type, const void* gradient, const void* x, const void* bias, void* out,
                                      std::int64_t count, std::int64_t width, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  return with_type(type, [&](auto zero) {
    using T = decltype(zero);
    bias_gelu_backward<T><<<blocks_of_elements(count), kThreads, 0, stream>>>(
        static_cast<const T*>(gradient), static_cast<const T*>(x), static_cast<const T*>(bias), static_cast<T*>(out),
        count, width);
  });
}

cudaError_t masked_add_on_gpu(Numbers type, const void* x, const bool* mask, double scale, const void* residual,
                              void* out, std::int64_t count, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  return with_type(type, [&](auto zero) {
    using T = decltype(zero);
    masked_add<T><<<blocks_of_elements(count), kThreads, 0, stream>>>(
        static_cast<const T*>(x), mask, static_cast<wide_t<T>>(scale), static_cast<const T*>(residual),
        static_cast<T*>(out), count);
  });
}

cudaError_t add_norm_on_gpu(Numbers type, const AddNormTensors& tensors, double scale, double eps,
                            const NormShape& shape, cudaStream_t stream) {
  if (shape.rows == 0) return cudaSuccess;
  return with_type(type, [&](auto zero) {
    using T = decltype(zero);
    add_norm<T><<<blocks_for(shape.rows), kThreadsOfARow, 0, stream>>>(tensors, static_cast<wide_t<T>>(scale),
                                                                       static_cast<wide_t<T>>(eps), shape);
  });
}

cudaError_t add_norm_backward_on_gpu(Numbers type, const AddNormGradients& tensors, const NormShape& shape,
                                     cudaStream_t stream) {
  if (shape.rows == 0) return cudaSuccess;
  return with_type(type, [&](auto zero) {
    using T = decltype(zero);
    add_norm_backward<T><<<blocks_for(shape.rows), kThreadsOfARow, 0, stream>>>(tensors, shape);
  });
}

}  // namespace trireme::nn
