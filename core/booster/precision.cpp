#include "core/booster/precision.h"

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>

#include "core/base/error.h"
#include "core/base/planned_device.h"

namespace trireme {

Precision Precision::parse(const std::string& name) {
  if (name == "fp32") return {at::kFloat, at::kFloat, at::kFloat, false};
  if (name == "tf32") return {.parameters = at::kFloat, .compute = at::kFloat, .loss = at::kFloat, .tf32 = true};
  if (name == "fp64") return {at::kDouble, at::kDouble, at::kDouble, false};
  if (name == "bf16") return {at::kFloat, at::kBFloat16, at::kFloat, false};
  if (name == "fp16") return {at::kFloat, at::kHalf, at::kFloat, true};
  throw ConfigError(fmt::format("train.precision: \"{}\" must be one of fp32, tf32, bf16, fp16, fp64", name));
}

Precision Precision::pure(const std::string& name) {
  auto precision = parse(name);
  precision.parameters = precision.compute;
  return precision;
}

void set_float32_matmul_precision(const Precision& precision, c10::Device device) {
  if (device.is_cpu() && precision.tf32) throw ConfigError(fmt::format("train.precision: {}", kTf32OnCpu));
  at::globalContext().setAllowTF32CuBLAS(precision.tf32);
  at::globalContext().setAllowTF32CuDNN(precision.tf32);
}

AutocastScope::AutocastScope(const Precision& precision, c10::Device device) {
  if (!precision.autocasts()) return;
  before_ = AutocastState::current(type_of(device));
  AutocastState{before_->device, true, precision.compute}.apply();
  at::autocast::increment_nesting();
}

AutocastScope::~AutocastScope() {
  if (!before_) return;
  // Autocast caches half-precision copies of the weights for one forward pass; the next step makes them stale.
  if (at::autocast::decrement_nesting() == 0) clear_autocast_cache();
  before_->apply();
}

}  // namespace trireme
