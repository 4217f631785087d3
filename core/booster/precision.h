// Precision of a run: the dtype of parameters and data, and the autocast scope of a forward pass.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <string>

namespace trireme {

struct Precision {
  at::ScalarType parameters = at::kFloat;  ///< dtype of parameters, gradients and data
  at::ScalarType compute = at::kFloat;     ///< dtype of matrix products; another than `parameters`: by autocast
  at::ScalarType loss = at::kFloat;        ///< dtype that a criterion gets the outputs in
  bool loss_scale = false;
  bool tf32 = false;  ///< CUDA multiplies fp32 matrices in TF32: fp32's range, 10 bits of mantissa
  /// fp32 | tf32 | bf16 | fp16 | fp64. @throws ConfigError
  static Precision parse(const std::string& name);
  /// The same numbers without autocast: half-precision parameters, for an engine that keeps masters beside them.
  static Precision pure(const std::string& name);
  [[nodiscard]] bool autocasts() const { return parameters != compute; }
};

constexpr const char* kTf32OnCpu = "\"tf32\" is a mode of CUDA GPUs, but this run is on the CPU; use \"fp32\"";

/// Sets, for the process, how CUDA multiplies and convolves fp32 tensors: in TF32 if the precision says so, else in
/// full fp32. LibTorch's own default convolves in TF32. @throws ConfigError for tf32 on a CPU.
void set_float32_products(const Precision& precision, c10::Device device);

/// Autocast while it lives (when the precision asks for it), restored and its weight cache cleared at the end.
class AutocastScope {
 public:
  AutocastScope(const Precision& precision, c10::Device device);
  ~AutocastScope();
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;

 private:
  bool on_;
  c10::DeviceType device_;
  bool was_enabled_ = false;
  at::ScalarType was_dtype_ = at::kFloat;
};

}  // namespace trireme
