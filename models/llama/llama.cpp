#include <ATen/TensorOperators.h>

#include <memory>
#include <string>

#include "core/nn/layers/attention.h"
#include "core/nn/layers/embedding.h"
#include "core/nn/layers/gated_linear.h"
#include "core/nn/layers/rms_norm.h"
#include "models/decoder.h"
#include "models/llama/kind.h"
#include "models/parts.h"

namespace trireme::models::llama {
namespace {

using nn::Context;
using nn::Tensors;

std::shared_ptr<nn::Linear> projection(const Options& o, std::int64_t in, std::int64_t out, bool bias,
                                       std::int64_t in_unit = 1) {
  return std::make_shared<nn::Linear>(
      nn::Linear::Options{.in = in, .out = out, .bias = bias, .init_std = *o.initializer_range, .in_unit = in_unit});
}
std::shared_ptr<nn::RmsNorm> rms_norm(const Options& o) {
  return std::make_shared<nn::RmsNorm>(*o.hidden_size, *o.rms_norm_eps);
}

class DecoderLayer : public nn::Block {
 public:
  DecoderLayer(const Options& o, const std::shared_ptr<const nn::Rotary>& rotary) {
    const auto hidden = *o.hidden_size, inner = *o.intermediate_size, width = *o.num_heads * *o.head_size;
    const bool mlp_bias = o.mlp_bias.value_or(false);
    const auto norm_eps = o.query_key_norm ? o.rms_norm_eps : std::nullopt;
    // Hugging Face's names: the attention's output is a child of the attention, whose own layer has the projections.
    attention_ = register_module("self_attn", std::make_shared<nn::SelfAttention>(
                                                  nn::SelfAttention::Options{.hidden = hidden,
                                                                             .heads = *o.num_heads,
                                                                             .key_value_heads = *o.num_key_value_heads,
                                                                             .head_size = *o.head_size,
                                                                             .bias = *o.attention_bias,
                                                                             .dropout = *o.attention_dropout,
                                                                             .init_std = *o.initializer_range,
                                                                             .causal = true,
                                                                             .names = {"q_proj", "k_proj", "v_proj"},
                                                                             .rotary = rotary,
                                                                             .query_key_norm = norm_eps}));
    out_ = attention_->register_module("o_proj", projection(o, width, hidden, *o.attention_bias, *o.head_size));
    gated_ = register_module("mlp", std::make_shared<nn::GatedLinear>(
                                        nn::GatedLinear::Options{.in = hidden,
                                                                 .out = inner,
                                                                 .bias = mlp_bias,
                                                                 .init_std = *o.initializer_range,
                                                                 .activation = nn::activation_of(*o.hidden_act)}));
    down_ = gated_->register_module("down_proj", projection(o, inner, hidden, mlp_bias));
    norm_before_ = register_module("input_layernorm", rms_norm(o));
    norm_after_ = register_module("post_attention_layernorm", rms_norm(o));
  }

  Tensors forward(Tensors inputs, const Context& context) override {
    const auto& x = inputs.at(0);
    const auto mixed = attention_->forward(norm_before_->forward(x, context), context);
    const auto [h, normed] = norm_after_->of_sum(x, out_->forward(mixed, context), context);
    return {h + down_->forward(gated_->forward(normed, context), context)};
  }

 private:
  std::shared_ptr<nn::SelfAttention> attention_;
  std::shared_ptr<nn::Unary> out_, gated_, down_, norm_before_;
  std::shared_ptr<nn::RmsNorm> norm_after_;
};

class Llama : public Decoder {
 public:
  explicit Llama(const Options& o);
  [[nodiscard]] std::vector<nn::RedundantTensor> redundant_tensors() const override;

 private:
  bool tied_;
};

Llama::Llama(const Options& o) : tied_(*o.tied) {
  auto& model = submodule(*this, "model");
  const auto token_embedding = model.register_module(
      "embed_tokens", std::make_shared<nn::Embedding>(nn::Embedding::Options{.vocabulary = *o.vocab_size,
                                                                             .features = *o.hidden_size,
                                                                             .init_std = *o.initializer_range,
                                                                             .padding_id = o.padding_id}));
  add_embeddings({.tokens = token_embedding, .longest = o.longest});
  const auto rotary = std::make_shared<const nn::Rotary>(
      nn::Rotary::Options{.head_size = *o.head_size, .theta = *o.rope_theta, .scaling = o.rope});
  auto& layers = submodule(model, "layers");
  for (std::int64_t i = 0; i < *o.num_layers; ++i)
    add_block(layers.register_module(std::to_string(i), std::make_shared<DecoderLayer>(o, rotary)));
  const auto norm = model.register_module("norm", rms_norm(o));
  auto head = tied_ ? nullptr
                    : std::make_shared<nn::Linear>(nn::Linear::Options{.in = *o.hidden_size,
                                                                       .out = *o.vocab_size,
                                                                       .bias = false,
                                                                       .init_std = *o.initializer_range,
                                                                       .is_head = true});
  add_head(model, norm, std::move(head), token_embedding);
}

std::vector<nn::RedundantTensor> Llama::redundant_tensors() const {
  std::vector<nn::RedundantTensor> out{{"layers.*.self_attn.rotary_emb.inv_freq"}};
  if (tied_) out.push_back({"lm_head.weight", "model.embed_tokens.weight", "set model.tied = false to use both"});
  return out;
}

}  // namespace

std::unique_ptr<nn::Model> Kind::make_model(const Options& options) const { return std::make_unique<Llama>(options); }

nn::Policy Kind::policy(const void* options) const {
  const bool tied = *static_cast<const Options*>(options)->tied;
  namespace role = nn::role;
  const std::string layer = "model.layers.*.";
  nn::Policy policy{.tensor = {{"model.embed_tokens", tied ? role::tied_embedding : role::vocab_parallel_embedding},
                               {layer + "self_attn", role::attention},
                               {layer + "self_attn.o_proj", role::row_parallel},
                               {layer + "mlp", role::gated_column_parallel},
                               {layer + "mlp.down_proj", role::row_parallel}},
                    .sequence = {{"model.embed_tokens", role::scatter_tokens},
                                 {layer + "input_layernorm", role::token_wise},
                                 {layer + "post_attention_layernorm", role::token_wise},
                                 {"model.norm", role::token_wise},
                                 {"model.scored_tokens", role::gather_tokens}}};
  if (!tied) policy.tensor.push_back({"lm_head", role::classifier_head});
  return policy;
}

}  // namespace trireme::models::llama
