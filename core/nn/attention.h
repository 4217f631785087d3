// Attention: softmax(q k^T / sqrt(d)) v, and the layer that computes q, k and v from one input. Vaswani et al.,
// "Attention Is All You Need", 2017. Heads of queries may share keys and values: Ainslie et al., "GQA", 2023.
// Shapes: B samples, N tokens, n <= N query tokens, d features per head.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "core/nn/dropout.h"
#include "core/nn/linear_group.h"
#include "core/nn/rotary.h"

namespace trireme::nn {

/// Which keys a query attends to.
struct AttentionPattern {
  bool causal = false;    ///< query i attends to keys 0 to i
  at::Tensor key_mask{};  ///< [B, N], nonzero where a key counts; undefined: all count
};

/// What is added to the scores of these query and key tokens, [..., queries, keys]: 0 where a query attends to a key,
/// -inf at keys after a causal query, and -1e4 at keys that do not count, so that a query without any key that counts
/// has finite values. Undefined when every query attends to every key.
at::Tensor score_bias(const AttentionPattern& pattern, shard::Range queries, shard::Range keys, at::ScalarType dtype,
                      c10::Device device);

/// x [B, heads, N, d], each head repeated: [B, count, N, d]. @pre heads divides count
at::Tensor repeat_heads(const at::Tensor& x, std::int64_t count);

/// q [B, heads, n, d], k and v [B, key-value heads, N, d] -> [B, heads, n, d]. Each key-value head serves as many
/// consecutive heads of q. With `fused` and inactive `dropout` it uses LibTorch's fused kernel (attention_kernel()),
/// which does not store the scores but cannot apply our dropout mask. Otherwise the scores are computed and the mask is
/// applied to the probabilities.
at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, Dropout& dropout,
                     const Context& context, const AttentionPattern& pattern = {}, bool fused = true);

/// The kernel that LibTorch chooses for attention() with these shapes, this dtype and device, and LibTorch's current
/// settings: "flash", "memory-efficient" or "cuDNN"; "" when it chooses no fused kernel.
std::string attention_kernel(std::int64_t heads, std::int64_t tokens, std::int64_t head_size, at::ScalarType dtype,
                             c10::Device device);

/// The children are the three projections, with the names that the options give (by default Hugging Face's for
/// encoders), and "dropout" (of the probabilities).
class SelfAttention : public Layer {
 public:
  struct Options {
    std::int64_t hidden, heads;
    std::int64_t key_value_heads = 0;  ///< 0: as many as heads
    std::int64_t head_size = 0;        ///< 0: hidden / heads
    bool bias = true;
    double dropout = 0, init_std = 0.02;
    bool causal = false;
    /// The side input [B, N] that is nonzero for tokens that count as keys, if the data have it; "": all count.
    std::string mask = "attention_mask";
    std::array<std::string, 3> names{"query", "key", "value"};
    std::shared_ptr<const Rotary> rotary{};  ///< null: positions are not the attention's affair
  };
  /// @throws ConfigError when the numbers of heads do not divide each other
  explicit SelfAttention(const Options& options);

  /// x [B, N, hidden] -> [B, n, h * d], ordered by head, where h is the number of heads that this rank holds: the
  /// attention of the first `query_tokens` tokens (0: all) to all tokens.
  at::Tensor forward(const at::Tensor& x, const Context& context, std::int64_t query_tokens = 0);

  /// Replaces attention(). q, k and v have the shapes given there, or hold slices of the tokens; the pattern is that of
  /// all tokens.
  using AttentionForward =
      std::function<at::Tensor(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const Context& context,
                               std::int64_t query_tokens, const AttentionPattern& pattern)>;
  void set_attention(AttentionForward replacement) { attention_ = std::move(replacement); }
  /// For x that is a slice of the tokens: the position of its first one.
  void set_first_token(std::function<std::int64_t(const Context& context)> first) { first_token_ = std::move(first); }
  /// For a rank that holds all key-value heads, and these of the others.
  void set_heads_here(shard::Range heads) { heads_here_ = heads; }

  [[nodiscard]] std::int64_t heads() const { return heads_; }  ///< heads of the whole layer, on all ranks
  [[nodiscard]] std::int64_t key_value_heads() const { return key_value_heads_; }
  [[nodiscard]] std::int64_t head_size() const { return head_size_; }
  /// Whether to use a fused kernel.
  void fuse(bool on) { fused_ = on; }
  [[nodiscard]] bool fused() const { return fused_; }

  LinearGroup projections;  ///< query, key, value
  const std::shared_ptr<Dropout> dropout;

 private:
  [[nodiscard]] AttentionPattern pattern(const Context& context) const;
  [[nodiscard]] at::Tensor by_head(const at::Tensor& y) const;
  [[nodiscard]] at::Tensor key_value_heads_here(const at::Tensor& x) const;

  std::int64_t heads_, key_value_heads_, head_size_;
  bool causal_, fused_ = true;
  std::string mask_;
  std::shared_ptr<const Rotary> rotary_;
  AttentionForward attention_;
  std::function<std::int64_t(const Context&)> first_token_;
  std::optional<shard::Range> heads_here_;
};

}  // namespace trireme::nn
