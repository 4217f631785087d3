// The kernels behind fused steps on a GPU (core/nn/fused.h). No header of LibTorch: nvcc takes long over them. All
// tensors are dense and on the device, and of one type of numbers but for means and deviations, which are float, or
// double for double. Sums are in those too. Each returns what the launch says.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace trireme::nn {

enum class Numbers { f32, f64, f16, bf16 };

/// out = gelu(x + bias); x [count], bias [width], which divides count.
cudaError_t bias_gelu_on_gpu(Numbers type, const void* x, const void* bias, void* out, std::int64_t count,
                             std::int64_t width, cudaStream_t stream);
/// out = gradient * gelu'(x + bias).
cudaError_t bias_gelu_backward_on_gpu(Numbers type, const void* gradient, const void* x, const void* bias, void* out,
                                      std::int64_t count, std::int64_t width, cudaStream_t stream);

/// out = residual + x * mask * scale; mask or residual null: without it.
cudaError_t masked_add_on_gpu(Numbers type, const void* x, const bool* mask, double scale, const void* residual,
                              void* out, std::int64_t count, cudaStream_t stream);

struct NormShape {
  std::int64_t rows, width;
};
/// sum as above; norm = (sum - mean) * rstd * weight + bias over each row, rstd = 1 / sqrt(variance + eps).
struct AddNormTensors {
  const void *x, *residual, *weight, *bias;
  const bool* mask;  ///< or null
  void *sum, *norm, *mean, *rstd;
};
cudaError_t add_norm_on_gpu(Numbers type, const AddNormTensors& tensors, double scale, double eps,
                            const NormShape& shape, cudaStream_t stream);
/// out = of_sum + the gradient that comes to the sum through the norm; of_sum null: without it.
struct AddNormGradients {
  const void *of_norm, *of_sum, *sum, *mean, *rstd, *weight;
  void* out;
};
cudaError_t add_norm_backward_on_gpu(Numbers type, const AddNormGradients& tensors, const NormShape& shape,
                                     cudaStream_t stream);

}  // namespace trireme::nn
