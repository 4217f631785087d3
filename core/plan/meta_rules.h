// What the files of MetaKernels share: each adds its rules to the library of kernels for the meta device.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <cstdint>

#include "core/base/planned_device.h"

namespace trireme::plan {

/// The device whose kernels a tensor without values stands for: the CPU where no device is planned.
inline c10::DeviceType stands_for(const at::Tensor& x) {
  const auto type = type_of(x.device());
  return type == c10::kMeta ? c10::kCPU : type;
}

/// A work buffer that the CPU's kernel holds while it runs: memory of the same size, to be held as long. Empty on other
/// devices.
inline at::Tensor work_buffer(const at::Tensor& x, at::IntArrayRef sizes, at::ScalarType dtype) {
  return stands_for(x) == c10::kCPU ? at::empty(sizes, x.options().dtype(dtype)) : at::Tensor();
}

/// The work buffer of a product [m, k] x [k, n] in bfloat16 on the CPU, in bytes. `transposed`: the rows of the first
/// factor are not contiguous.
std::int64_t product_buffer(std::int64_t m, std::int64_t n, std::int64_t k, bool transposed, std::int64_t threads);

void add_norm_rules(torch::Library& library);
void add_convolution_rules(torch::Library& library);
void add_pointwise_rules(torch::Library& library);
void add_product_rules(torch::Library& library);
/// `with_gradients`: of the key AutogradMeta, where scaled_dot_product_attention calls the chosen operator.
void add_attention_rules(torch::Library& library, torch::Library& with_gradients);

/// `library`: of the key kPlannedAutocast (core/base/autocast.h).
void add_autocast_rules(torch::Library& library);

}  // namespace trireme::plan
