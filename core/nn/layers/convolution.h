// Conv2d, MaxPool2d and GlobalAveragePool: the layers of convolutional networks, with the arithmetic of torch.nn's.
#pragma once

#include <cstdint>
#include <optional>

#include "core/nn/layer.h"

namespace trireme::nn {

/// weight [out, in / groups, kernel, kernel], bias [out]; x [B, in, H, W] -> [B, out, H', W'] with
/// H' = floor((H + 2 padding - dilation (kernel - 1) - 1) / stride) + 1, and W' likewise. The output has the memory
/// format of x: channels-last for a channels-last x.
class Conv2d : public Unary {
 public:
  struct Options {
    std::int64_t in, out, kernel;
    std::int64_t stride = 1, padding = 0, dilation = 1, groups = 1;
    bool bias = true;
    /// Of the weight; unset: uniform within 1 / sqrt(fan_in), fan_in = in / groups * kernel^2, like the bias.
    std::optional<Init> init{};
    /// The memory format of the inputs: the weight then has it too, where a rank holds a whole one.
    bool channels_last = false;
  };
  /// @throws UsageError: `in` or `out` is not a multiple of `groups`, or a size is out of range
  explicit Conv2d(const Options& options);
  [[nodiscard]] const Options& options() const { return options_; }

  at::Tensor weight, bias;  ///< bias is undefined without one

 protected:
  /// @throws ConfigError: x has another number of channels, or is smaller than the kernel
  at::Tensor compute(const at::Tensor& x, const Context& context) override;

 private:
  Options options_;
};

/// The greatest value of each window: x [B, C, H, W] -> [B, C, H', W'], with Conv2d's H' and W' for a dilation of 1.
class MaxPool2d : public Unary {
 public:
  struct Options {
    std::int64_t kernel;
    std::optional<std::int64_t> stride{};  ///< unset: the kernel's size
    std::int64_t padding = 0;              ///< at most half of the kernel's size
  };
  /// @throws UsageError for a size out of range
  explicit MaxPool2d(const Options& options);

 protected:
  /// @throws ConfigError: x is smaller than the kernel
  at::Tensor compute(const at::Tensor& x, const Context& context) override;

 private:
  Options options_;
};

/// The mean of each channel: x [B, C, H, W] -> [B, C].
class GlobalAveragePool : public Unary {
 protected:
  /// @throws ConfigError: x has another number of dims
  at::Tensor compute(const at::Tensor& x, const Context& context) override;
};

}  // namespace trireme::nn
