// Reader: a user's own model with its parallel policy. It reads lines of letters and classifies them.
//
// Blocks: embedding, layer0, layer1, ..., head. One tensor [B, N, H] passes between them.
// Shapes: B lines, N letters per line, H hidden, K classes.
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/gelu.h>

#include <memory>
#include <string>

#include "core/base/fields.h"
#include "core/nn/block.h"
#include "core/nn/layers/attention.h"
#include "core/nn/layers/linear.h"
#include "core/nn/policy.h"

namespace reader {

namespace nn = trireme::nn;

constexpr std::int64_t kLetters = 8, kLength = 12, kClasses = 5;

struct Options {
  std::int64_t hidden = 24, heads = 3, width = 40, layers = 4;
  double dropout = 0.1;
};

/// The keys of [model].
inline const trireme::Fields<Options>& fields() {
  static const auto table = trireme::Fields<Options>("model", "Reads lines of letters.")
                                .add("hidden", &Options::hidden,
                                     "Size of a letter's embedding; divisible by the number of heads.", {.min = 1})
                                .add("heads", &Options::heads, "Attention heads.", {.min = 1})
                                .add("width", &Options::width, "Inside the MLP.", {.min = 1})
                                .add("layers", &Options::layers, "Attention and MLP.", {.min = 0})
                                .add("dropout", &Options::dropout, "Dropout probability.", {.min = 0, .below = 1});
  return table;
}

inline std::shared_ptr<nn::Unary> linear(std::int64_t in, std::int64_t out, std::int64_t in_unit = 1) {
  return std::make_shared<nn::Linear>(nn::Linear::Options{.in = in, .out = out, .init_std = 0.2, .in_unit = in_unit});
}
inline std::shared_ptr<nn::Unary> norm(const Options& o) { return std::make_shared<nn::LayerNorm>(o.hidden, 1e-6); }

/// Declares its own parameters; they are drawn by name when they get memory.
class Embedding : public nn::Block {
 public:
  explicit Embedding(const Options& o)
      : dropout_(register_module("dropout", std::make_shared<nn::Dropout>(o.dropout))) {
    declare("letters", letters_, {kLetters, o.hidden}, nn::Init::normal(0, 1));
    declare("places", places_, {kLength, o.hidden}, nn::Init::normal(0, 1));
  }
  nn::Tensors forward(nn::Tensors inputs, const nn::Context& context) override {
    return {dropout_->forward(at::embedding(letters_, inputs[0]) + places_, context)};
  }

 private:
  at::Tensor letters_, places_;
  std::shared_ptr<nn::Dropout> dropout_;
};

class Encoder : public nn::Block {
 public:
  explicit Encoder(const Options& o)
      : norm_(register_module("norm", norm(o))),
        attention_(register_module("attention", std::make_shared<nn::SelfAttention>(nn::SelfAttention::Options{
                                                    .hidden = o.hidden, .heads = o.heads, .init_std = 0.2}))),
        out_(register_module("out", linear(o.hidden, o.hidden, /*in_unit=*/o.hidden / o.heads))),
        mlp_norm_(register_module("mlp_norm", norm(o))),
        mlp_in_(register_module("mlp_in", linear(o.hidden, o.width))),
        mlp_out_(register_module("mlp_out", linear(o.width, o.hidden))),
        dropout_(register_module("dropout", std::make_shared<nn::Dropout>(o.dropout))) {}

  nn::Tensors forward(nn::Tensors inputs, const nn::Context& context) override {
    const auto& x = inputs[0];
    const auto h = x + out_->forward(attention_->forward(norm_->forward(x, context), context), context);
    const auto inner = at::gelu(mlp_in_->forward(mlp_norm_->forward(h, context), context));
    return {h + dropout_->forward(mlp_out_->forward(inner, context), context)};
  }

 private:
  std::shared_ptr<nn::Unary> norm_;
  std::shared_ptr<nn::SelfAttention> attention_;
  std::shared_ptr<nn::Unary> out_, mlp_norm_, mlp_in_, mlp_out_, dropout_;
};

class Head : public nn::Block {
 public:
  explicit Head(const Options& o)
      : norm_(register_module("norm", norm(o))),
        classifier_(register_module("classifier", linear(o.hidden, kClasses))) {}
  nn::Tensors forward(nn::Tensors inputs, const nn::Context& context) override {
    return {classifier_->forward(norm_->forward(inputs[0], context).mean(1), context)};
  }

 private:
  std::shared_ptr<nn::Unary> norm_, classifier_;
};

class Reader : public nn::Model {
 public:
  explicit Reader(const Options& o) {
    add_block(register_module("embedding", std::make_shared<Embedding>(o)));
    for (std::int64_t i = 0; i < o.layers; ++i)
      add_block(register_module("layer" + std::to_string(i), std::make_shared<Encoder>(o)));
    add_block(register_module("head", std::make_shared<Head>(o)));
    finish();
  }
};

/// The layers that tensor parallelism shards. All others are whole on each rank.
inline nn::Policy policy() {
  namespace role = nn::role;
  return {.tensor = {{"layer*.attention", role::attention},
                     {"layer*.out", role::row_parallel},
                     {"layer*.mlp_in", role::column_parallel},
                     {"layer*.mlp_out", role::row_parallel},
                     {"head.classifier", role::column_parallel_gather_output}}};
}

}  // namespace reader
