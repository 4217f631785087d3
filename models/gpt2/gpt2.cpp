#include <ATen/TensorOperators.h>

#include <cmath>
#include <memory>
#include <string>

#include "core/nn/layers/attention.h"
#include "core/nn/layers/embedding.h"
#include "core/nn/layers/linear.h"
#include "models/decoder.h"
#include "models/gpt2/kind.h"
#include "models/parts.h"

namespace trireme::models::gpt2 {
namespace {

using nn::Context;
using nn::Tensors;

std::shared_ptr<nn::LayerNorm> norm(const Options& o) {
  return std::make_shared<nn::LayerNorm>(*o.hidden_size, *o.layer_norm_eps);
}
std::shared_ptr<nn::Embedding> embedding(const Options& o, std::int64_t vocabulary) {
  return std::make_shared<nn::Embedding>(
      nn::Embedding::Options{.vocabulary = vocabulary, .features = *o.hidden_size, .init_std = *o.initializer_range});
}

/// A layer before a residual sum. Its initial weights are the smaller the more of these sums there are, so that the
/// sums' variance does not grow with the depth.
std::shared_ptr<nn::Linear> to_residual(const Options& o, std::int64_t in, std::int64_t in_unit = 1) {
  const auto sums = static_cast<double>(2 * *o.num_layers);
  return std::make_shared<nn::Linear>(nn::Linear::Options{.in = in,
                                                          .out = *o.hidden_size,
                                                          .init_std = *o.initializer_range / std::sqrt(sums),
                                                          .in_unit = in_unit,
                                                          .stored_transposed = true});
}

class DecoderLayer : public nn::Block {
 public:
  explicit DecoderLayer(const Options& o) {
    const auto hidden = *o.hidden_size, inner = *o.intermediate_size;
    norm_before_ = register_module("ln_1", norm(o));
    attention_ = register_module(
        "attn", std::make_shared<nn::SelfAttention>(nn::SelfAttention::Options{.hidden = hidden,
                                                                               .heads = *o.num_heads,
                                                                               .dropout = *o.attention_dropout,
                                                                               .init_std = *o.initializer_range,
                                                                               .causal = true,
                                                                               .names = {"c_attn"},
                                                                               .stored_transposed = true}));
    attention_out_ = attention_->register_module("c_proj", to_residual(o, hidden, hidden / *o.num_heads));
    attention_dropout_ = attention_->register_module("resid_dropout", std::make_shared<nn::Dropout>(*o.dropout));
    norm_after_ = register_module("ln_2", norm(o));
    auto& mlp = submodule(*this, "mlp");
    mlp_in_ = mlp.register_module(
        "c_fc", std::make_shared<nn::Linear>(nn::Linear::Options{.in = hidden,
                                                                 .out = inner,
                                                                 .init_std = *o.initializer_range,
                                                                 .activation = nn::activation_of(*o.hidden_act),
                                                                 .stored_transposed = true}));
    mlp_out_ = mlp.register_module("c_proj", to_residual(o, inner));
    mlp_dropout_ = mlp.register_module("dropout", std::make_shared<nn::Dropout>(*o.dropout));
  }

  Tensors forward(Tensors inputs, const Context& context) override {
    const auto& x = inputs.at(0);
    const auto mixed =
        attention_out_->forward(attention_->forward(norm_before_->forward(x, context), context), context);
    const auto h = norm_after_->of_sum(x, mixed, *attention_dropout_, context);
    const auto y = mlp_out_->forward(mlp_in_->forward(h.norm, context), context);
    return {mlp_dropout_->add_to(h.sum, y, context)};
  }

 private:
  std::shared_ptr<nn::SelfAttention> attention_;
  std::shared_ptr<nn::Unary> norm_before_, attention_out_, mlp_in_, mlp_out_;
  std::shared_ptr<nn::LayerNorm> norm_after_;
  std::shared_ptr<nn::Dropout> attention_dropout_, mlp_dropout_;
};

class Gpt2 : public Decoder {
 public:
  explicit Gpt2(const Options& o);
  [[nodiscard]] std::vector<nn::RedundantTensor> redundant_tensors() const override {
    return {{"lm_head.weight", "transformer.wte.weight"}, {"h.*.attn.bias"}, {"h.*.attn.masked_bias"}};
  }
};

Gpt2::Gpt2(const Options& o) {
  auto& model = submodule(*this, "transformer");
  const auto token_embedding = model.register_module("wte", embedding(o, *o.vocab_size));
  const auto positions = model.register_module("wpe", embedding(o, *o.max_positions));
  const auto dropout = model.register_module("drop", std::make_shared<nn::Dropout>(*o.embedding_dropout));
  add_embeddings({.tokens = token_embedding, .longest = *o.max_positions, .positions = positions, .dropout = dropout});
  auto& layers = submodule(model, "h");
  for (std::int64_t i = 0; i < *o.num_layers; ++i)
    add_block(layers.register_module(std::to_string(i), std::make_shared<DecoderLayer>(o)));
  add_head(model, model.register_module("ln_f", norm(o)), /*head=*/nullptr, token_embedding);
}

}  // namespace

std::unique_ptr<nn::Model> Kind::make_model(const Options& options) const { return std::make_unique<Gpt2>(options); }

nn::Policy Kind::policy(const void* /*options*/) const {
  namespace role = nn::role;
  const std::string layer = "transformer.h.*.";
  return {.tensor = {{"transformer.wte", role::tied_embedding},
                     {layer + "attn", role::attention},
                     {layer + "attn.c_proj", role::row_parallel},
                     {layer + "mlp.c_fc", role::column_parallel},
                     {layer + "mlp.c_proj", role::row_parallel}},
          .sequence = {{"transformer.wpe", role::whole},
                       {"transformer.drop", role::scatter_tokens},
                       {layer + "ln_1", role::token_wise},
                       {layer + "attn.resid_dropout", role::token_wise},
                       {layer + "ln_2", role::token_wise},
                       {layer + "mlp.dropout", role::token_wise},
                       {"transformer.ln_f", role::token_wise},
                       {"transformer.scored_tokens", role::gather_tokens}}};
}

}  // namespace trireme::models::gpt2
