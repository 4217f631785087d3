// Attention: softmax(q k^T / sqrt(d)) v, and the layer that makes q, k and v of one input. Vaswani et al., "Attention
// Is All You Need", 2017. Shapes: B samples, N tokens, n <= N of them that ask, d features a head.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <string>

#include "core/nn/dropout.h"
#include "core/nn/linear.h"

namespace trireme::nn {

/// q [B, heads, n, d], k and v [B, heads, N, d] -> [B, heads, n, d]. `fused` and while `dropout` is not active: the
/// kernel that LibTorch has for it (attention_kernel()), which never holds the scores; it cannot take our mask. Else
/// the scores are formed, and the mask falls on the probabilities.
at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, Dropout& dropout,
                     const Context& context, bool fused = true);

/// What LibTorch computes attention() with, by its own choice for such shapes, dtype and device, and its settings:
/// "flash", "memory-efficient" or "cuDNN"; "": nothing fused, it forms the scores.
std::string attention_kernel(std::int64_t heads, std::int64_t tokens, std::int64_t head_size, at::ScalarType dtype,
                             c10::Device device);

/// Children, as Hugging Face names them: "query", "key", "value", and "dropout" of the probabilities.
class SelfAttention : public Layer {
 public:
  struct Options {
    std::int64_t hidden, heads;
    bool bias = true;
    double dropout = 0, init_std = 0.02;
  };
  /// @pre heads divides hidden
  explicit SelfAttention(const Options& options);

  /// x [B, N, hidden] -> [B, n, held heads * d], head by head: what the first `asking` tokens (0: all) take from all.
  at::Tensor forward(const at::Tensor& x, const Context& context, std::int64_t asking = 0);

  /// A policy may compute the three products its own way: of x the first `asking` tokens (0: all) for q, all for k and
  /// v.
  using Project =
      std::function<std::array<at::Tensor, 3>(const at::Tensor& x, const Context& context, std::int64_t asking)>;
  void project_by(Project instead) { project_ = std::move(instead); }
  /// And what attention() makes of them: q, k and v as there, or slices of their tokens.
  using Attend = std::function<at::Tensor(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                          const Context& context, std::int64_t asking)>;
  void attend_by(Attend instead) { attend_ = std::move(instead); }
  [[nodiscard]] std::int64_t heads() const { return heads_; }  ///< of the whole layer
  [[nodiscard]] std::int64_t head_size() const { return head_size_; }
  /// Whether attention() is to be fused.
  void fuse(bool on) { fused_ = on; }
  [[nodiscard]] bool fused() const { return fused_; }

  const std::shared_ptr<Linear> query, key, value;
  const std::shared_ptr<Dropout> dropout;

 private:
  std::int64_t heads_, head_size_;
  bool fused_ = true;
  Project project_;
  Attend attend_;
};

}  // namespace trireme::nn
