// Rotary position embedding: each pair of features of queries and keys is rotated by an angle that grows with the
// token's position, so that their products depend on distances alone. Su et al., "RoFormer", 2021. Pairs are (i, i +
// d/2), as in Llama.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "core/nn/context.h"
#include "core/nn/layers/rotary_scaling.h"

namespace trireme::nn {

class Rotary {
 public:
  struct Options {
    std::int64_t head_size;  ///< even
    double theta = 10000;
    /// The input [B, N] that holds the tokens' positions, if the data have it; otherwise they are 0, 1, ...
    std::string positions = "position_ids";
    RotaryScaling scaling{};
  };
  explicit Rotary(Options options);
  [[nodiscard]] const Options& options() const { return options_; }

  struct Angles {
    at::Tensor cos, sin;  ///< [n, d], or [B, 1, n, d] with positions from the data
  };
  /// For x [B, heads, n, d], tokens first to first + n - 1 of the samples. They are computed in float32 at least, and
  /// once for all layers that share this object: these rotate the same tokens, one layer after the other in one thread.
  [[nodiscard]] Angles angles(const at::Tensor& x, std::int64_t first, const Context& context) const;
  /// x [B, heads, m, d], the first m <= n tokens of the angles.
  [[nodiscard]] static at::Tensor rotate(const at::Tensor& x, const Angles& angles);

 private:
  [[nodiscard]] Angles compute(const at::Tensor& x, const at::Tensor& positions, std::int64_t tokens) const;
  Options options_;
  /// The last call: the angles, and what they are for.
  struct Last {
    std::int64_t first = -1, tokens = 0;
    at::Tensor positions;  ///< from the data, or undefined
    std::int64_t version = 0;
    Angles angles;
  };
  mutable Last last_;
};

}  // namespace trireme::nn
