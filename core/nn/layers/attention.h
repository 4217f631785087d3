// Attention: softmax(q k^T / sqrt(d)) v, and the layer that computes q, k and v from one input. Vaswani et al.,
// "Attention Is All You Need", 2017. Heads of queries may share keys and values: Ainslie et al., "GQA", 2023.
// Shapes: B samples, N tokens, n <= N query tokens, d features per head.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/nn/data_spec.h"
#include "core/nn/layers/dropout.h"
#include "core/nn/layers/kernels.h"
#include "core/nn/layers/linear_group.h"
#include "core/nn/layers/rms_norm.h"
#include "core/nn/layers/rotary.h"

namespace trireme::nn {

class Model;

/// Which keys a query attends to.
struct AttentionPattern {
  bool causal = false;    ///< query i attends to keys 0 to i
  at::Tensor key_mask{};  ///< [B, N], nonzero where a key counts; undefined: all count
  /// [B, N], the number of each token's document: a query attends to the keys of its own one; undefined: to all.
  at::Tensor documents{};
  /// Whether samples may be padded: otherwise padding would change the outputs of the other tokens.
  [[nodiscard]] bool allows_padding() const { return causal || key_mask.defined(); }
};

/// What is added to the scores of these query and key tokens, [..., queries, keys]: 0 where a query attends to a key,
/// -inf at keys after a causal query, and -1e4 at keys that do not count and those of other documents, so that a query
/// without any key that counts has finite values. Undefined when every query attends to every key.
at::Tensor score_bias(const AttentionPattern& pattern, shard::Range queries, shard::Range keys, at::ScalarType dtype,
                      c10::Device device);

/// x [B, heads, N, d], each head repeated: [B, count, N, d]. @pre heads divides count
at::Tensor repeat_heads(const at::Tensor& x, std::int64_t count);

/// q [B, heads, n, d], k and v [B, key-value heads, N, d] -> [B, heads, n, d]. Each key-value head serves as many
/// consecutive heads of q. With inactive `dropout` it uses the kernel: a fused one does not store the scores but cannot
/// apply our dropout mask. With dropout the scores are computed and the mask is applied to the probabilities
/// (core/nn/layers/attention_dropout.h). `first_head`: the index in the layer of q's first head, for the mask.
at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, Dropout& dropout,
                     const Context& context, const AttentionPattern& pattern = {},
                     AttentionKernel kernel = AttentionKernel::fastest, std::int64_t first_head = 0);

/// The kernel that attention() uses with these shapes, this dtype and device, and LibTorch's current settings: "flash",
/// "memory-efficient" or "cuDNN"; "" when there is no fused kernel, or not the one that `wanted` names.
/// `masked`: with a mask, which some kernels do not take.
std::string attention_kernel(std::int64_t heads, std::int64_t tokens, std::int64_t head_size, at::ScalarType dtype,
                             c10::Device device, AttentionKernel wanted = AttentionKernel::fastest,
                             bool masked = false);

/// The children are the projections, with the names that the options give (by default Hugging Face's for encoders), and
/// "dropout" (of the probabilities).
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
    /// The side input [B, N] with the number of each token's document, if the data have it; "": samples are one
    /// document.
    std::string documents = "document_ids";
    /// Of the projections. One name: they are fused in one layer, whose features are first all queries', then all
    /// keys', then all values'; each part is ordered by head.
    std::vector<std::string> names{"query", "key", "value"};
    bool stored_transposed = false;          ///< the projections' weights in files; see Linear
    std::shared_ptr<const Rotary> rotary{};  ///< null: no rotary position embedding
    /// The eps of an RmsNorm of each head's queries, "q_norm", and one of its keys, "k_norm", before rotary positions;
    /// unset: there are none. The heads of all ranks share their weights.
    std::optional<double> query_key_norm{};
  };
  /// @throws ConfigError when the numbers of heads do not divide each other, or there are neither one nor three names
  explicit SelfAttention(const Options& options);

  /// x [B, N, hidden] -> [B, n, h * d], ordered by head, where h is the number of heads that this rank holds: the
  /// attention of the first `query_tokens` tokens (0: all) to all tokens.
  at::Tensor forward(const at::Tensor& x, const Context& context, std::int64_t query_tokens = 0);

  [[nodiscard]] std::int64_t heads() const { return options_.heads; }  ///< heads of the whole layer, on all ranks
  [[nodiscard]] std::int64_t key_value_heads() const { return options_.key_value_heads; }
  [[nodiscard]] std::int64_t head_size() const { return options_.head_size; }
  /// The side inputs that say which keys a query attends to.
  [[nodiscard]] std::vector<std::string> mask_names() const { return {options_.mask, options_.documents}; }
  [[nodiscard]] bool is_causal() const { return options_.causal; }
  [[nodiscard]] const Rotary* rotary() const { return options_.rotary.get(); }  ///< null: none
  void set_kernel(AttentionKernel kernel) { kernel_ = kernel; }
  [[nodiscard]] AttentionKernel kernel() const { return kernel_; }
  /// Whether `attend` calls attention() with kernel(); false for a replacement that does not.
  void set_uses_kernel(bool uses) { uses_kernel_ = uses; }
  [[nodiscard]] bool uses_kernel() const { return uses_kernel_; }

  /// Whether a tensor of the side inputs with this name would change what the layer computes.
  [[nodiscard]] bool reads(const std::string& side_input) const;

 private:
  const Options options_;  ///< complete

 public:
  LinearGroup projections;                              ///< query, key, value
  const std::shared_ptr<RmsNorm> query_norm, key_norm;  ///< null without query_key_norm
  const std::shared_ptr<Dropout> dropout;

  /// Computes attention(). q, k and v have the shapes given there, or are slices of the tokens; the pattern covers all
  /// tokens.
  Replaceable<at::Tensor(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const Context& context,
                         std::int64_t query_tokens, const AttentionPattern& pattern)>
      attend;
  /// The position of x's first token: 0, unless x is a slice of the tokens.
  Replaceable<std::int64_t(const Context& context)> first_token;
  /// Maps keys or values [B, key-value heads, N, d] to the heads that this rank's queries use. By default it returns x;
  /// a rank that holds every key-value head but only some query heads replaces it.
  Replaceable<at::Tensor(const at::Tensor& x)> expand_key_value_heads;

  [[nodiscard]] std::vector<Unary*> sharded_parts() const override;
  [[nodiscard]] bool can_recompute() const override { return true; }
  void set_recompute(bool on) override { recompute_ = on; }

 private:
  at::Tensor compute(const at::Tensor& x, const Context& context, std::int64_t query_tokens);
  [[nodiscard]] AttentionPattern pattern(const Context& context) const;
  [[nodiscard]] at::Tensor by_head(const at::Tensor& y) const;

  AttentionKernel kernel_ = AttentionKernel::fastest;
  bool uses_kernel_ = true, recompute_ = false;
};

/// The problem, or "": the data have an input that attention layers of the model read, such as "attention_mask", but
/// the model gives it to no block, so that it would be ignored.
std::string unread_side_input(Model& model, const DataSpec& data);

}  // namespace trireme::nn
