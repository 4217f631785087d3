// Conversion: how a stored tensor becomes a parameter of another shape, or of another meaning of the same shape.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>

namespace trireme::nn {

struct Conversion {
  std::string done{};  ///< what is done to the tensor, for a log: "interpolated"
  std::function<at::Tensor(const at::Tensor& stored)> apply{};
  /// Whether there is one.
  explicit operator bool() const { return apply != nullptr; }
};

}  // namespace trireme::nn
