// Attention: softmax(q k^T / sqrt(d)) v, and the layer that computes q, k and v from one input. Vaswani et al.,
// "Attention Is All You Need", 2017. Shapes: B samples, N tokens, n <= N query tokens, d features per head.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <string>

#include "core/nn/dropout.h"
#include "core/nn/linear.h"

namespace trireme::nn {

/// q [B, heads, n, d], k and v [B, heads, N, d] -> [B, heads, n, d]. With `fused` and inactive `dropout` it uses
/// LibTorch's fused kernel (attention_kernel()), which does not store the scores but cannot apply our dropout mask.
/// Otherwise the scores are computed and the mask is applied to the probabilities.
at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, Dropout& dropout,
                     const Context& context, bool fused = true);

/// The kernel that LibTorch chooses for attention() with these shapes, this dtype and device, and LibTorch's current
/// settings: "flash", "memory-efficient" or "cuDNN"; "" when it chooses no fused kernel.
std::string attention_kernel(std::int64_t heads, std::int64_t tokens, std::int64_t head_size, at::ScalarType dtype,
                             c10::Device device);

/// The children have Hugging Face's names: "query", "key", "value", and "dropout" (of the probabilities).
class SelfAttention : public Layer {
 public:
  struct Options {
    std::int64_t hidden, heads;
    bool bias = true;
    double dropout = 0, init_std = 0.02;
  };
  /// @pre heads divides hidden
  explicit SelfAttention(const Options& options);

  /// x [B, N, hidden] -> [B, n, h * d], ordered by head, where h is the number of heads that this rank holds: the
  /// attention of the first `query_tokens` tokens (0: all) to all tokens.
  at::Tensor forward(const at::Tensor& x, const Context& context, std::int64_t query_tokens = 0);

  /// Replaces the three projections: it returns q of the first `query_tokens` tokens of x (0: all), and k and v of all
  /// tokens.
  using Projection =
      std::function<std::array<at::Tensor, 3>(const at::Tensor& x, const Context& context, std::int64_t query_tokens)>;
  void set_projection(Projection replacement) { projection_ = std::move(replacement); }
  /// Replaces attention(). q, k and v have the shapes given there, or hold slices of the tokens.
  using AttentionForward = std::function<at::Tensor(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                                    const Context& context, std::int64_t query_tokens)>;
  void set_attention(AttentionForward replacement) { attention_ = std::move(replacement); }
  [[nodiscard]] std::int64_t heads() const { return heads_; }  ///< heads of the whole layer, on all ranks
  [[nodiscard]] std::int64_t head_size() const { return head_size_; }
  /// Whether to use a fused kernel.
  void fuse(bool on) { fused_ = on; }
  [[nodiscard]] bool fused() const { return fused_; }

  const std::shared_ptr<Linear> query, key, value;
  const std::shared_ptr<Dropout> dropout;

 private:
  std::int64_t heads_, head_size_;
  bool fused_ = true;
  Projection projection_;
  AttentionForward attention_;
};

}  // namespace trireme::nn
