// The kernels of the fused steps on a GPU (core/nn/layers/fused.h, gated_step.h). No LibTorch header is included,
// because nvcc compiles those slowly. All tensors are dense, on the device and of one dtype, except means and
// reciprocal deviations: those are float, or double for double. Sums are accumulated in the same type. Each function
// returns the status of the launch.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace trireme::nn {

enum class DType { f32, f64, f16, bf16 };

/// out = gelu(x + bias), with x [count] and bias [width]. @pre width divides count
cudaError_t bias_gelu_on_gpu(DType type, const void* x, const void* bias, void* out, std::int64_t count,
                             std::int64_t width, cudaStream_t stream);
/// out = gradient * gelu'(x + bias).
cudaError_t bias_gelu_backward_on_gpu(DType type, const void* gradient, const void* x, const void* bias, void* out,
                                      std::int64_t count, std::int64_t width, cudaStream_t stream);

/// out = residual + x * mask * scale. A null mask or residual is left out.
cudaError_t masked_add_on_gpu(DType type, const void* x, const bool* mask, double scale, const void* residual,
                              void* out, std::int64_t count, cudaStream_t stream);

struct NormShape {
  std::int64_t rows, width;
};
/// sum is the output of masked_add_on_gpu(); norm = (sum - mean) * rstd * weight + bias over each row, with rstd = 1 /
/// sqrt(variance + eps).
struct AddNormTensors {
  const void *x, *residual, *weight, *bias;
  const bool* mask;  ///< may be null
  void *sum, *norm, *mean, *rstd;
};
cudaError_t add_norm_on_gpu(DType type, const AddNormTensors& tensors, double scale, double eps, const NormShape& shape,
                            cudaStream_t stream);
/// out = of_sum + the gradient that reaches the sum through the norm. of_sum may be null: then it is left out.
struct AddNormGradients {
  const void *of_norm, *of_sum, *sum, *mean, *rstd, *weight;
  void* out;
};
cudaError_t add_norm_backward_on_gpu(DType type, const AddNormGradients& tensors, const NormShape& shape,
                                     cudaStream_t stream);

/// out = silu(gate) * up.
cudaError_t gate_on_gpu(DType type, const void* gate, const void* up, void* out, std::int64_t count,
                        cudaStream_t stream);
struct GateGradients {
  const void *gradient, *gate, *up;
  void *of_gate, *of_up;
};
cudaError_t gate_backward_on_gpu(DType type, const GateGradients& tensors, std::int64_t count, cudaStream_t stream);

}  // namespace trireme::nn
