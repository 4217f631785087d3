// Precision of a run: the dtypes of parameters and data, and the autocast scope of a forward pass.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <optional>
#include <string>

#include "core/base/autocast.h"

namespace trireme {

struct Precision {
  at::ScalarType parameters = at::kFloat;  ///< dtype of parameters, gradients and data
  at::ScalarType compute = at::kFloat;     ///< dtype of matrix products; uses autocast if it differs from `parameters`
  at::ScalarType loss = at::kFloat;        ///< dtype of the outputs that a criterion gets
  bool loss_scale = false;
  bool tf32 = false;                       ///< CUDA multiplies fp32 matrices in TF32: fp32's range, 10 bits of mantissa
  std::optional<at::ScalarType> inputs{};  ///< dtype that a batch's inputs are cast to; unset: they stay as they are
  /// fp32 | tf32 | bf16 | fp16 | fp64. @throws ConfigError
  static Precision parse(const std::string& name);
  /// The same precision without autocast: half-precision parameters, for an engine with separate master weights.
  static Precision pure(const std::string& name);
  [[nodiscard]] bool autocasts() const { return parameters != compute; }
};

constexpr const char* kTf32OnCpu = "\"tf32\" is a mode of CUDA GPUs, but this run is on the CPU; use \"fp32\"";

/// Sets for the whole process how CUDA multiplies and convolves fp32 tensors: in TF32 if the precision asks for it,
/// else in full fp32. LibTorch's default uses TF32 for convolutions. @throws ConfigError for tf32 on a CPU.
void set_float32_matmul_precision(const Precision& precision, c10::Device device);

/// Enables autocast in a scope if the precision needs it; at the end restores it and clears its weight cache.
class AutocastScope {
 public:
  AutocastScope(const Precision& precision, c10::Device device);
  ~AutocastScope();
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;

 private:
  std::optional<AutocastState> before_{};  ///< unset: the precision needs no autocast
};

}  // namespace trireme
