#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/zeros_like.h>

#include <string>
#include <utility>

#include "core/nn/layers/attention.h"
#include "core/nn/layers/embedding.h"
#include "core/nn/layers/linear.h"
#include "core/nn/layers/tokens.h"
#include "models/bert/kind.h"
#include "models/head_block.h"
#include "models/parts.h"

namespace trireme::models::bert {
namespace {

using nn::Context;
using nn::Tensors;

std::shared_ptr<nn::LayerNorm> norm(const Options& o) {
  return std::make_shared<nn::LayerNorm>(*o.hidden_size, *o.layer_norm_eps);
}
std::shared_ptr<nn::Linear> linear(const Options& o, std::int64_t in, std::int64_t out, std::int64_t in_unit = 1,
                                   nn::Activation activation = nn::Activation::none) {
  return std::make_shared<nn::Linear>(nn::Linear::Options{
      .in = in, .out = out, .init_std = *o.initializer_range, .in_unit = in_unit, .activation = activation});
}
std::shared_ptr<nn::Embedding> embedding(const Options& o, std::int64_t vocabulary, std::int64_t padding_id = -1) {
  return std::make_shared<nn::Embedding>(nn::Embedding::Options{.vocabulary = vocabulary,
                                                                .features = *o.hidden_size,
                                                                .init_std = *o.initializer_range,
                                                                .padding_id = padding_id});
}

class Embeddings : public nn::Block {
 public:
  explicit Embeddings(const Options& o)
      : word_embeddings(register_module("word_embeddings", embedding(o, *o.vocab_size, *o.padding_id))),
        positions_(register_module("position_embeddings", embedding(o, *o.max_positions))),
        types_(register_module("token_type_embeddings", embedding(o, *o.type_vocab_size))),
        norm_(register_module("LayerNorm", norm(o))),
        dropout_(register_module("dropout", std::make_shared<nn::Dropout>(*o.dropout))) {}

  Tensors forward(Tensors inputs, const Context& context) override {
    const auto& ids = inputs.at(0);
    check_length(ids, positions_->options().vocabulary);
    const auto* types = context.side.find("token_type_ids");
    const auto* positions = context.side.find("position_ids");
    const auto places = positions == nullptr ? at::arange(ids.size(1), ids.options()).unsqueeze(0) : *positions;
    const auto x = word_embeddings->forward(ids, context) + positions_->forward(places, context) +
                   types_->forward(types == nullptr ? at::zeros_like(ids) : *types, context);
    return {dropout_->forward(norm_->forward(x, context), context)};
  }

  const std::shared_ptr<nn::Embedding> word_embeddings;

 private:
  std::shared_ptr<nn::Embedding> positions_, types_;
  std::shared_ptr<nn::Unary> norm_, dropout_;
};

class EncoderLayer : public nn::Block {
 public:
  explicit EncoderLayer(const Options& o) {
    const std::int64_t hidden = *o.hidden_size, inner = *o.intermediate_size;
    auto& attention = submodule(*this, "attention");
    attention_ = attention.register_module(
        "self", std::make_shared<nn::SelfAttention>(nn::SelfAttention::Options{.hidden = hidden,
                                                                               .heads = *o.num_heads,
                                                                               .dropout = *o.attention_dropout,
                                                                               .init_std = *o.initializer_range}));
    auto& attention_out = submodule(attention, "output");
    attention_out_ = attention_out.register_module("dense", linear(o, hidden, hidden, hidden / *o.num_heads));
    attention_norm_ = attention_out.register_module("LayerNorm", norm(o));
    attention_dropout_ = attention_out.register_module("dropout", std::make_shared<nn::Dropout>(*o.dropout));
    mlp_in_ = submodule(*this, "intermediate")
                  .register_module("dense", linear(o, hidden, inner, 1, nn::activation_of(*o.hidden_act)));
    auto& output = submodule(*this, "output");
    mlp_out_ = output.register_module("dense", linear(o, inner, hidden));
    mlp_norm_ = output.register_module("LayerNorm", norm(o));
    mlp_dropout_ = output.register_module("dropout", std::make_shared<nn::Dropout>(*o.dropout));
  }

  Tensors forward(Tensors inputs, const Context& context) override {
    const auto& x = inputs.at(0);
    const auto mixed = attention_out_->forward(attention_->forward(x, context), context);
    const auto h = attention_norm_->of_sum(x, mixed, *attention_dropout_, context).norm;
    const auto y = mlp_out_->forward(mlp_in_->forward(h, context), context);
    return {mlp_norm_->of_sum(h, y, *mlp_dropout_, context).norm};
  }

 private:
  std::shared_ptr<nn::SelfAttention> attention_;
  std::shared_ptr<nn::Unary> attention_out_, mlp_in_, mlp_out_;
  std::shared_ptr<nn::LayerNorm> attention_norm_, mlp_norm_;
  std::shared_ptr<nn::Dropout> attention_dropout_, mlp_dropout_;
};

/// Scores of every token id for each token, by the embedding. Its first layers work on slices of the tokens.
std::shared_ptr<nn::Block> lm_head(const Options& o, torch::nn::Module& model,
                                   const std::shared_ptr<nn::Embedding>& word_embeddings) {
  const auto scores =
      submodule(model, "cls").register_module("predictions", std::make_shared<nn::TiedHead>(word_embeddings));
  auto& transform = submodule(*scores, "transform");
  const auto dense = transform.register_module(
      "dense", linear(o, *o.hidden_size, *o.hidden_size, 1, nn::activation_of(*o.hidden_act)));
  const auto norm_of_it = transform.register_module("LayerNorm", norm(o));
  const auto tokens = scores->register_module("tokens", std::make_shared<nn::AllTokens>());
  return std::make_shared<HeadBlock>(HeadBlock::Layers{dense, norm_of_it, tokens, scores},
                                     std::vector<std::shared_ptr<torch::nn::Module>>{scores, word_embeddings});
}

/// Scores of the classes, for the first token of each sample or for each token.
std::shared_ptr<nn::Block> class_head(const Options& o, torch::nn::Module& model, torch::nn::Module& bert) {
  HeadBlock::Layers layers;
  const auto add = [&](torch::nn::Module& parent, const std::string& name, std::shared_ptr<nn::Unary> layer) {
    parent.register_module(name, layer);
    layers.push_back(std::move(layer));
  };
  if (o.head == Head::sequence) {
    add(bert, "first_token", std::make_shared<nn::FirstToken>());
    add(submodule(bert, "pooler"), "dense", linear(o, *o.hidden_size, *o.hidden_size, 1, nn::Activation::tanh));
  } else {
    add(bert, "all_tokens", std::make_shared<nn::AllTokens>());
  }
  add(model, "dropout", std::make_shared<nn::Dropout>(*o.classifier_dropout));
  add(model, "classifier", linear(o, *o.hidden_size, o.classes));
  return std::make_shared<HeadBlock>(layers);
}

class Bert : public nn::Model {
 public:
  explicit Bert(const Options& o);
  [[nodiscard]] std::vector<std::string> input_names() const override { return {"input_ids"}; }
  [[nodiscard]] std::vector<std::string> side_input_names() const override {
    return {"attention_mask", "document_ids", "token_type_ids", "position_ids"};
  }
  [[nodiscard]] bool releases_outputs() const override { return true; }
  [[nodiscard]] std::int64_t tokens(const nn::Tensors& inputs) const override { return inputs.at(0).size(1); }
  [[nodiscard]] std::vector<nn::RedundantTensor> redundant_tensors() const override;

 private:
  Head head_;
};

Bert::Bert(const Options& o) : head_(o.head) {
  auto& bert = submodule(*this, "bert");
  const auto embeddings = bert.register_module("embeddings", std::make_shared<Embeddings>(o));
  add_block(embeddings);
  auto& layers = submodule(submodule(bert, "encoder"), "layer");
  for (std::int64_t i = 0; i < *o.num_layers; ++i)
    add_block(layers.register_module(std::to_string(i), std::make_shared<EncoderLayer>(o)));
  add_block(o.head == Head::masked_lm ? lm_head(o, *this, embeddings->word_embeddings) : class_head(o, *this, bert));
  finish();
}

std::vector<nn::RedundantTensor> Bert::redundant_tensors() const {
  std::vector<nn::RedundantTensor> out{{"embeddings.position_ids"}};
  if (head_ == Head::masked_lm) {
    out.push_back({"cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"});
    out.push_back({"cls.predictions.decoder.bias", "cls.predictions.bias"});
  }
  return out;
}

}  // namespace

std::unique_ptr<nn::Model> Kind::make_model(const Options& options) const { return std::make_unique<Bert>(options); }

nn::Policy Kind::policy(const void* options) const {
  const auto head = static_cast<const Options*>(options)->head;
  namespace role = nn::role;
  const std::string layer = "bert.encoder.layer.*.";
  const bool tied = head == Head::masked_lm;
  nn::Policy policy{
      .tensor = {{"bert.embeddings.word_embeddings", tied ? role::tied_embedding : role::vocab_parallel_embedding},
                 {layer + "attention.self", role::attention},
                 {layer + "attention.output.dense", role::row_parallel},
                 {layer + "intermediate.dense", role::column_parallel},
                 {layer + "output.dense", role::row_parallel},
                 tied ? nn::PolicyRow{"cls.predictions", role::tied_head}
                      : nn::PolicyRow{"classifier", role::classifier_head}},
      .sequence = {{"bert.embeddings.position_embeddings", role::whole},
                   {"bert.embeddings.token_type_embeddings", role::whole},
                   {"bert.embeddings.LayerNorm", role::whole},
                   {"bert.embeddings.dropout", role::scatter_tokens},
                   {layer + "attention.output.dropout", role::token_wise},
                   {layer + "attention.output.LayerNorm", role::token_wise},
                   {layer + "output.dropout", role::token_wise},
                   {layer + "output.LayerNorm", role::token_wise}}};
  const auto add = [&](const char* path, const char* role) { policy.sequence.push_back({path, role}); };
  if (tied) {
    add("cls.predictions.transform.dense", role::token_wise);
    add("cls.predictions.transform.LayerNorm", role::token_wise);
    add("cls.predictions.tokens", role::gather_tokens);
    return policy;
  }
  add(head == Head::sequence ? "bert.first_token" : "bert.all_tokens", role::gather_tokens);
  if (head == Head::sequence) add("bert.pooler.dense", role::whole);
  add("dropout", role::whole);
  return policy;
}

}  // namespace trireme::models::bert
