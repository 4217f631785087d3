#include "core/nn/cuda/packs.cuh"

namespace trireme::nn {
namespace {

constexpr int kThreads = 256;

/// P(X <= x) for a standard normal X.
__device__ float below(float x) { return 0.5F * (1 + erff(x * 0.70710678118654752440F)); }
__device__ double below(double x) { return 0.5 * (1 + erf(x * 0.70710678118654752440)); }
__device__ float density(float x) { return 0.39894228040143267794F * expf(-0.5F * x * x); }
__device__ double density(double x) { return 0.39894228040143267794 * exp(-0.5 * x * x); }

/// Calls body(element, column) for each pack of a [rows, width] tensor. The threads of a block lie along a row
/// (blockDim.x), so column and row come from the thread index without a division.
template <int kCount, class Body>
__device__ void each_pack(std::int64_t rows, std::int64_t width, const Body& body) {
  const auto step = static_cast<std::int64_t>(gridDim.x) * blockDim.x * kCount;
  for (auto row = static_cast<std::int64_t>(blockIdx.y) * blockDim.y + threadIdx.y; row < rows;
       row += static_cast<std::int64_t>(gridDim.y) * blockDim.y)
    for (auto column = (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * kCount; column < width;
         column += step)
      body(row * width + column, column);
}

template <class T, int kCount>
__global__ void bias_gelu(const T* x, const T* bias, T* out, std::int64_t rows, std::int64_t width) {
  each_pack<kCount>(rows, width, [&](std::int64_t i, std::int64_t column) {
    const auto input = load<kCount>(x + i), beside = load<kCount>(bias + column);
    Pack<T, kCount> gelu;
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      const wide_t<T> y = widened(input.at(k)) + widened(beside.at(k));
      gelu.set(k, narrowed<T>(y * below(y)));
    }
    store<kCount>(out + i, gelu);
  });
}

template <class T, int kCount>
__global__ void bias_gelu_backward(const T* gradient, const T* x, const T* bias, T* out, std::int64_t rows,
                                   std::int64_t width) {
  each_pack<kCount>(rows, width, [&](std::int64_t i, std::int64_t column) {
    const auto incoming = load<kCount>(gradient + i), input = load<kCount>(x + i), beside = load<kCount>(bias + column);
    Pack<T, kCount> of_x;
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      const wide_t<T> y = widened(input.at(k)) + widened(beside.at(k));
      of_x.set(k, narrowed<T>(widened(incoming.at(k)) * (below(y) + y * density(y))));
    }
    store<kCount>(out + i, of_x);
  });
}

template <class W>
__device__ W sigmoid(W x) {
  return 1 / (1 + exp(-x));
}

template <class T, int kCount>
__global__ void gate(const T* gate, const T* up, T* out, std::int64_t count) {
  each_pack<kCount>(1, count, [&](std::int64_t i, std::int64_t) {
    const auto x = load<kCount>(gate + i), beside = load<kCount>(up + i);
    Pack<T, kCount> product;
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      const wide_t<T> y = widened(x.at(k));
      product.set(k, narrowed<T>(y * sigmoid(y) * widened(beside.at(k))));
    }
    store<kCount>(out + i, product);
  });
}

// silu'(y) = s + y s (1 - s), with s = sigmoid(y).
template <class T, int kCount>
__global__ void gate_backward(GateGradients t, std::int64_t count) {
  each_pack<kCount>(1, count, [&](std::int64_t i, std::int64_t) {
    const auto incoming = load<kCount>(static_cast<const T*>(t.gradient) + i);
    const auto x = load<kCount>(static_cast<const T*>(t.gate) + i),
               beside = load<kCount>(static_cast<const T*>(t.up) + i);
    Pack<T, kCount> of_gate, of_up;
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      const wide_t<T> g = widened(incoming.at(k)), y = widened(x.at(k)), s = sigmoid(y);
      of_gate.set(k, narrowed<T>(g * widened(beside.at(k)) * (s + y * s * (1 - s))));
      of_up.set(k, narrowed<T>(g * y * s));
    }
    store<kCount>(static_cast<T*>(t.of_gate) + i, of_gate);
    store<kCount>(static_cast<T*>(t.of_up) + i, of_up);
  });
}

template <class T, int kCount>
__global__ void masked_add(TermPointers<T> terms, wide_t<T> scale, T* out, std::int64_t count) {
  const auto step = static_cast<std::int64_t>(gridDim.x) * blockDim.x * kCount;
  for (auto i = (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * kCount; i < count; i += step)
    store<kCount>(out + i, sum_of<kCount>(load<kCount>(terms, i), terms, scale));
}

/// The launch size: a block of kThreads threads that is as wide as a row has packs, in whole warps, and as high as that
/// allows. The grid covers the tensor, or iterates over it.
struct Cover {
  dim3 blocks, threads;
};
Cover cover(std::int64_t rows, std::int64_t packs) {
  unsigned across = kWarp;
  while (across < kThreads && across < packs) across *= 2;
  const unsigned down = kThreads / across;
  constexpr std::int64_t kMostDown = 65535;  // the device's limit of gridDim.y
  const auto high = (rows + down - 1) / down;
  return {dim3(blocks_for((packs + across - 1) / across), static_cast<unsigned>(high < kMostDown ? high : kMostDown)),
          dim3(across, down)};
}

}  // namespace

cudaError_t bias_gelu_on_gpu(DType type, const void* x, const void* bias, void* out, std::int64_t count,
                             std::int64_t width, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  return with_type(type, width, {x, bias, out}, nullptr, [&](auto zero, auto pack) {
    using T = decltype(zero);
    constexpr int kCount = decltype(pack)::value;
    const auto [blocks, threads] = cover(count / width, width / kCount);
    launch(bias_gelu<T, kCount>, blocks, threads, stream, static_cast<const T*>(x), static_cast<const T*>(bias),
           static_cast<T*>(out), count / width, width);
  });
}

cudaError_t bias_gelu_backward_on_gpu(DType type, const void* gradient, const void* x, const void* bias, void* out,
                                      std::int64_t count, std::int64_t width, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  return with_type(type, width, {gradient, x, bias, out}, nullptr, [&](auto zero, auto pack) {
    using T = decltype(zero);
    constexpr int kCount = decltype(pack)::value;
    const auto [blocks, threads] = cover(count / width, width / kCount);
    launch(bias_gelu_backward<T, kCount>, blocks, threads, stream, static_cast<const T*>(gradient),
           static_cast<const T*>(x), static_cast<const T*>(bias), static_cast<T*>(out), count / width, width);
  });
}

cudaError_t masked_add_on_gpu(DType type, const void* x, const bool* mask, double scale, const void* residual,
                              void* out, std::int64_t count, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  return with_type(type, count, {x, residual, out}, mask, [&](auto zero, auto pack) {
    using T = decltype(zero);
    constexpr int kCount = decltype(pack)::value;
    launch(masked_add<T, kCount>, blocks_for((count / kCount + kThreads - 1) / kThreads), kThreads, stream,
           TermPointers<T>{static_cast<const T*>(x), mask, static_cast<const T*>(residual)},
           static_cast<wide_t<T>>(scale), static_cast<T*>(out), count);
  });
}

cudaError_t gate_on_gpu(DType type, const void* of, const void* up, void* out, std::int64_t count,
                        cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  return with_type(type, count, {of, up, out}, nullptr, [&](auto zero, auto pack) {
    using T = decltype(zero);
    constexpr int kCount = decltype(pack)::value;
    launch(gate<T, kCount>, blocks_for((count / kCount + kThreads - 1) / kThreads), kThreads, stream,
           static_cast<const T*>(of), static_cast<const T*>(up), static_cast<T*>(out), count);
  });
}

cudaError_t gate_backward_on_gpu(DType type, const GateGradients& t, std::int64_t count, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  return with_type(type, count, {t.gradient, t.gate, t.up, t.of_gate, t.of_up}, nullptr, [&](auto zero, auto pack) {
    using T = decltype(zero);
    constexpr int kCount = decltype(pack)::value;
    launch(gate_backward<T, kCount>, blocks_for((count / kCount + kThreads - 1) / kThreads), kThreads, stream, t,
           count);
  });
}

}  // namespace trireme::nn
