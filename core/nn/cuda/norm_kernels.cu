#include "core/nn/cuda/packs.cuh"

namespace trireme::nn {
namespace {

// A narrow row has one warp, and a block has several rows; a wide row has a block. A thread keeps its part of the row
// in registers, up to kKept elements, so that the row is read once; of wider rows nothing is kept.
constexpr int kNarrowRows = 4, kWideWarps = 8;
constexpr int kKept = 32;

/// Returns the sum over all threads of a row to each of them: first within each warp through registers, then over the
/// sums of the warps.
template <int kWarps, class W>
__device__ W sum_over_row(W value) {
  constexpr unsigned kAll = 0xffffffffU;
#pragma unroll
  for (int away = kWarp / 2; away > 0; away /= 2) value += __shfl_xor_sync(kAll, value, away);
  if constexpr (kWarps > 1) {
    __shared__ W shared[kWarps];
    if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = value;
    __syncthreads();
    value = 0;
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) value += shared[warp];
    __syncthreads();  // before the next call writes to `shared`
  }
  return value;
}

/// Calls body(column, n) for each of this thread's packs of a row, its n-th. With kPacks > 0, no thread has more than
/// that many, and n is a constant of the unrolled loop: an array that it indexes is in registers. Otherwise n is 0.
template <int kCount, int kPacks, int kWarps, class Body>
__device__ void each_pack(std::int64_t width, const Body& body) {
  if constexpr (kPacks > 0) {
#pragma unroll
    for (int n = 0; n < kPacks; ++n) {
      const int column = (n * kWarps * kWarp + static_cast<int>(threadIdx.x)) * kCount;
      if (column < width) body(column, n);
    }
  } else {
    constexpr std::int64_t kStep = kWarps * kWarp * kCount;
    // nvcc moves the packs of an unrolled loop by words; the loads of single elements should overlap.
    [[maybe_unused]] constexpr int kUnrolled = kCount == 1 ? 2 : 1;
#pragma unroll kUnrolled
    for (std::int64_t column = threadIdx.x * kCount; column < width; column += kStep) body(column, 0);
  }
}

template <int kWarps>
constexpr int kRowsOfABlock = kWarps == 1 ? kNarrowRows : 1;

/// Calls body(row) for each row of this thread.
template <int kWarps, class Body>
__device__ void each_row(std::int64_t rows, const Body& body) {
  for (auto row = static_cast<std::int64_t>(blockIdx.x) * kRowsOfABlock<kWarps> + threadIdx.y; row < rows;
       row += static_cast<std::int64_t>(gridDim.x) * kRowsOfABlock<kWarps>)
    body(row);
}

template <class T, int kCount, int kPacks, int kWarps>
__global__ void __launch_bounds__(kWarps* kWarp* kRowsOfABlock<kWarps>, 1)
    add_norm(AddNormTensors t, wide_t<T> scale, wide_t<T> eps, NormShape shape) {
  using W = wide_t<T>;
  constexpr bool kReadAgain = kPacks == 0;
  const auto width = static_cast<W>(shape.width);
  const auto* weight = static_cast<const T*>(t.weight);
  const auto* bias = static_cast<const T*>(t.bias);
  const TermPointers<T> from{static_cast<const T*>(t.x), t.mask, static_cast<const T*>(t.residual)};
  each_row<kWarps>(shape.rows, [&](std::int64_t row) {
    const std::int64_t begin = row * shape.width;
    auto* sum = static_cast<T*>(t.sum) + begin;
    Terms<T, kCount> terms[kReadAgain ? 1 : kPacks];
    Pack<T, kCount> kept[kReadAgain ? 1 : kPacks];
    if constexpr (!kReadAgain)  // all packs are requested before one is waited for
      each_pack<kCount, kPacks, kWarps>(shape.width, [&](auto j, int n) { terms[n] = load<kCount>(from, begin + j); });
    W part = 0;
    each_pack<kCount, kPacks, kWarps>(shape.width, [&](auto j, int n) {
      if constexpr (kReadAgain) terms[n] = load<kCount>(from, begin + j);
      kept[n] = sum_of<kCount>(terms[n], from, scale);
      store<kCount>(sum + j, kept[n]);
#pragma unroll
      for (int k = 0; k < kCount; ++k) part += widened(kept[n].at(k));  // rounded, as the backward pass sees it
    });
    const W mean = sum_over_row<kWarps>(part) / width;
    part = 0;
    each_pack<kCount, kPacks, kWarps>(shape.width, [&](auto j, int n) {
      if constexpr (kReadAgain) kept[n] = load<kCount>(sum + j);
#pragma unroll
      for (int k = 0; k < kCount; ++k) {
        const W away = widened(kept[n].at(k)) - mean;
        part += away * away;
      }
    });
    const W rstd = 1 / sqrt(sum_over_row<kWarps>(part) / width + eps);
    each_pack<kCount, kPacks, kWarps>(shape.width, [&](auto j, int n) {
      if constexpr (kReadAgain) kept[n] = load<kCount>(sum + j);
      const auto factor = load<kCount>(weight + j), shift = load<kCount>(bias + j);
      Pack<T, kCount> out;
#pragma unroll
      for (int k = 0; k < kCount; ++k)
        out.set(k, narrowed<T>((widened(kept[n].at(k)) - mean) * rstd * widened(factor.at(k)) + widened(shift.at(k))));
      store<kCount>(static_cast<T*>(t.norm) + begin + j, out);
    });
    if (threadIdx.x == 0) {
      static_cast<W*>(t.mean)[row] = mean;
      static_cast<W*>(t.rstd)[row] = rstd;
    }
  });
}

// With g = of_norm * weight and n = (sum - mean) * rstd, the sum's gradient is rstd * (g - mean(g) - n * mean(g n)).
template <class T, int kCount, int kPacks, int kWarps>
__global__ void __launch_bounds__(kWarps* kWarp* kRowsOfABlock<kWarps>, 1)
    add_norm_backward(AddNormGradients t, NormShape shape) {
  using W = wide_t<T>;
  constexpr bool kReadAgain = kPacks == 0;
  const auto width = static_cast<W>(shape.width);
  const auto* weight = static_cast<const T*>(t.weight);
  each_row<kWarps>(shape.rows, [&](std::int64_t row) {
    const std::int64_t begin = row * shape.width;
    const auto* gradient = static_cast<const T*>(t.of_norm) + begin;
    const auto* sum = static_cast<const T*>(t.sum) + begin;
    const W mean = static_cast<const W*>(t.mean)[row], rstd = static_cast<const W*>(t.rstd)[row];
    Pack<T, kCount> incoming[kReadAgain ? 1 : kPacks], x[kReadAgain ? 1 : kPacks];
    const auto read = [&](auto j, int n) {
      incoming[n] = load<kCount>(gradient + j);
      x[n] = load<kCount>(sum + j);
    };
    if constexpr (!kReadAgain) each_pack<kCount, kPacks, kWarps>(shape.width, read);
    W of_all = 0, along = 0;
    each_pack<kCount, kPacks, kWarps>(shape.width, [&](auto j, int n) {
      if constexpr (kReadAgain) read(j, n);
      const auto factor = load<kCount>(weight + j);
#pragma unroll
      for (int k = 0; k < kCount; ++k) {
        const W g = widened(incoming[n].at(k)) * widened(factor.at(k));
        of_all += g;
        along += g * (widened(x[n].at(k)) - mean) * rstd;
      }
    });
    of_all = sum_over_row<kWarps>(of_all) / width;
    along = sum_over_row<kWarps>(along) / width;
    each_pack<kCount, kPacks, kWarps>(shape.width, [&](auto j, int n) {
      if constexpr (kReadAgain) read(j, n);
      const auto factor = load<kCount>(weight + j);
      Pack<T, kCount> out, beside{};
      if (t.of_sum != nullptr) beside = load<kCount>(static_cast<const T*>(t.of_sum) + begin + j);
#pragma unroll
      for (int k = 0; k < kCount; ++k) {
        const W g = widened(incoming[n].at(k)) * widened(factor.at(k));
        W y = rstd * (g - of_all - (widened(x[n].at(k)) - mean) * rstd * along);
        if (t.of_sum != nullptr) y += widened(beside.at(k));
        out.set(k, narrowed<T>(y));
      }
      store<kCount>(static_cast<T*>(t.out) + begin + j, out);
    });
  });
}

template <int kValue>
using Constant = std::integral_constant<int, kValue>;

/// Calls run(number of packs that a thread keeps, warps of a row, blocks, threads of a block), the first two as
/// integral constants. Packs of one element are rare and slow: they are not kept.
template <int kCount, class Run>
void with_row(const NormShape& shape, const Run& run) {
  const auto as = [&](auto packs, auto warps) {
    constexpr int kWarps = decltype(warps)::value, kRows = kRowsOfABlock<kWarps>;
    run(packs, warps, dim3(blocks_for((shape.rows + kRows - 1) / kRows)), dim3(kWarps * kWarp, kRows));
  };
  constexpr std::int64_t kNarrow = kWarp * kKept, kWide = kWideWarps * kNarrow;
  constexpr Constant<1> one_warp;
  constexpr Constant<kWideWarps> wide;
  if constexpr (kCount == 1) {
    if (shape.width <= kNarrow)
      as(Constant<0>{}, one_warp);
    else
      as(Constant<0>{}, wide);
  } else {
    if (shape.width <= kNarrow / 4)
      as(Constant<kKept / 4 / kCount>{}, one_warp);
    else if (shape.width <= kNarrow / 2)
      as(Constant<kKept / 2 / kCount>{}, one_warp);
    else if (shape.width <= kNarrow / 4 * 3)
      as(Constant<kKept / 4 * 3 / kCount>{}, one_warp);
    else if (shape.width <= kNarrow)
      as(Constant<kKept / kCount>{}, one_warp);
    else if (shape.width <= kWide / 2)
      as(Constant<kKept / 2 / kCount>{}, wide);
    else if (shape.width <= kWide)
      as(Constant<kKept / kCount>{}, wide);
    else
      as(Constant<0>{}, wide);
  }
}

}  // namespace

cudaError_t add_norm_on_gpu(DType type, const AddNormTensors& t, double scale, double eps, const NormShape& shape,
                            cudaStream_t stream) {
  if (shape.rows == 0) return cudaSuccess;
  return with_type(type, shape.width, {t.x, t.residual, t.weight, t.bias, t.sum, t.norm}, t.mask,
                   [&](auto zero, auto count) {
                     using T = decltype(zero);
                     constexpr int kCount = decltype(count)::value;
                     with_row<kCount>(shape, [&](auto packs, auto warps, dim3 blocks, dim3 threads) {
                       launch(add_norm<T, kCount, decltype(packs)::value, decltype(warps)::value>, blocks, threads,
                              stream, t, static_cast<wide_t<T>>(scale), static_cast<wide_t<T>>(eps), shape);
                     });
                   });
}

cudaError_t add_norm_backward_on_gpu(DType type, const AddNormGradients& t, const NormShape& shape,
                                     cudaStream_t stream) {
  if (shape.rows == 0) return cudaSuccess;
  return with_type(type, shape.width, {t.of_norm, t.of_sum, t.sum, t.weight, t.out}, nullptr,
                   [&](auto zero, auto count) {
                     using T = decltype(zero);
                     constexpr int kCount = decltype(count)::value;
                     with_row<kCount>(shape, [&](auto packs, auto warps, dim3 blocks, dim3 threads) {
                       launch(add_norm_backward<T, kCount, decltype(packs)::value, decltype(warps)::value>, blocks,
                              threads, stream, t, shape);
                     });
                   });
}

}  // namespace trireme::nn
