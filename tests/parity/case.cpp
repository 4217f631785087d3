#include "tests/parity/case.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/promote_types.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/linear.h>

#include "core/nn/adapt.h"
#include "core/nn/block.h"
#include "core/nn/layers/attention.h"
#include "core/nn/layers/embedding.h"
#include "core/nn/layers/linear.h"
#include "core/nn/layers/lora.h"
#include "core/nn/layers/tokens.h"
#include "models/registry.h"
#include "models/vit/kind.h"

namespace trireme::tests {
namespace {

/// Images of noise, each drawn by its index.
class Noise : public data::Dataset {
 public:
  Noise(std::int64_t n, std::int64_t height, std::int64_t width) : n_(n), shape_{3, height, width} {}
  std::int64_t size() const override { return n_; }
  std::optional<data::Sample> get(std::int64_t index, std::int64_t, bool) override {
    const auto whole = shard::Placement::whole("pixels", shape_);
    const auto pixels =
        shard::draw(shard::Init::normal(0, 1), 1000 + static_cast<std::uint64_t>(index), whole, at::kDouble, at::kCPU);
    return data::Sample{{{"pixel_values", pixels}}, data::class_label((index * 7 + 3) % kClasses)};
  }
  nn::DataSpec spec() override {
    return {.inputs = {{"pixel_values", at::kDouble, shape_}},
            .targets = {{nn::kLabels, at::kLong}},
            .classes = kClasses,
            .ignored_labels = false};
  }

 private:
  std::int64_t n_;
  std::vector<std::int64_t> shape_;
};

/// Passes its input on; its parameters get no gradient.
class Bystander : public nn::Block {
 public:
  Bystander()
      : linear_(register_module(
            "linear", std::make_shared<nn::Linear>(nn::Linear::Options{.in = 3, .out = 1, .init_std = 0.5}))) {}
  nn::Tensors forward(nn::Tensors inputs, const nn::Context&) override { return inputs; }

 private:
  std::shared_ptr<nn::Linear> linear_;
};

/// A model of another one's blocks and some more.
class Around : public nn::Model {
 public:
  explicit Around(std::shared_ptr<nn::Model> inner) : inner_(register_module("inner", std::move(inner))) {}
  std::int64_t tokens(const nn::Tensors& inputs) const override { return inner_->tokens(inputs); }

 protected:
  std::shared_ptr<nn::Model> inner_;
};

class WithBystander : public Around {
 public:
  explicit WithBystander(std::shared_ptr<nn::Model> inner) : Around(std::move(inner)) {
    add_block(register_module("bystander", std::make_shared<Bystander>()));
    for (const auto& block : inner_->blocks()) add_block(block);
    finish();
  }
};

/// x + tanh(W x + b), whose weight another block may share.
class Shared : public nn::Block {
 public:
  explicit Shared(std::shared_ptr<nn::Linear> linear) : linear_(register_module("linear", std::move(linear))) {}
  nn::Tensors forward(nn::Tensors inputs, const nn::Context& context) override {
    inputs[0] = inputs[0] + linear_->forward(inputs[0], context).tanh();
    return inputs;
  }

 private:
  std::shared_ptr<nn::Linear> linear_;
};

/// x + tanh(W x + b) for sample 3, x for all others. The result does not depend on how samples are batched.
class Rare : public nn::Block {
 public:
  explicit Rare(std::shared_ptr<nn::Linear> linear) : linear_(register_module("linear", std::move(linear))) {}
  nn::Tensors forward(nn::Tensors inputs, const nn::Context& context) override {
    const auto mine = context.sample_ids.eq(3);
    if (!mine.any().item<bool>()) return inputs;
    const auto mask = mine.to(inputs[0].options()).view({-1, 1, 1});
    inputs[0] = inputs[0] + mask * linear_->forward(inputs[0], context).tanh();
    return inputs;
  }

 private:
  std::shared_ptr<nn::Linear> linear_;
};

std::shared_ptr<nn::Linear> square(std::int64_t width) {
  return std::make_shared<nn::Linear>(nn::Linear::Options{.in = width, .out = width, .init_std = 0.2});
}

/// The inner model's blocks with a Rare block between the first and the second.
class WithRare : public Around {
 public:
  WithRare(std::shared_ptr<nn::Model> inner, std::int64_t width) : Around(std::move(inner)) {
    const auto rare = register_module("rare", std::make_shared<Rare>(square(width)));
    for (std::size_t i = 0; i < inner_->blocks().size(); ++i) {
      if (i == 1) add_block(rare);
      add_block(inner_->blocks()[i]);
    }
    finish();
  }
};

/// Passes its input on, and adds to the loss how uneven a router's probabilities are, summed over the tokens.
class Balance : public nn::Block {
 public:
  explicit Balance(std::int64_t width)
      : linear_(register_module(
            "linear", std::make_shared<nn::Linear>(nn::Linear::Options{.in = width, .out = 3, .init_std = 0.5}))) {}
  nn::Tensors forward(nn::Tensors inputs, const nn::Context& context) override {
    const auto scores = linear_->forward(inputs[0], context);
    const auto term = 0.1 * scores.to(at::promote_types(scores.scalar_type(), at::kFloat)).softmax(-1).square().sum();
    if (!context.training || context.loss_weight.defined())
      inputs[0] = context.add_to_loss(inputs[0], term);
    else
      last_term = term;
    return inputs;
  }
  at::Tensor last_term;

 private:
  std::shared_ptr<nn::Linear> linear_;
};

/// The inner model's blocks with a Balance block after the first.
class WithBalance : public Around {
 public:
  WithBalance(std::shared_ptr<nn::Model> inner, std::int64_t width) : Around(std::move(inner)) {
    balance = register_module("balance", std::make_shared<Balance>(width));
    for (std::size_t i = 0; i < inner_->blocks().size(); ++i) {
      if (i == 1) add_block(balance);
      add_block(inner_->blocks()[i]);
    }
    finish();
  }
  std::shared_ptr<Balance> balance;
};

/// The inner model's blocks, with a shared block twice after the first one. Before the last one that block runs again,
/// then another block with the same weights; with `rare` only a Rare block, so that stages differ in using the weights.
class Twice : public Around {
 public:
  Twice(std::shared_ptr<nn::Model> inner, std::int64_t width, bool rare, bool everywhere) : Around(std::move(inner)) {
    const auto linear = square(width);
    const auto block = register_module("shared", std::make_shared<Shared>(linear));
    std::shared_ptr<nn::Block> other = std::make_shared<Shared>(linear);
    if (rare) other = std::make_shared<Rare>(linear);
    register_module("other", other);
    const auto& blocks = inner_->blocks();
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      if (i == 1) {
        add_block(block);
        add_block(block);
      }
      if (i + 1 == blocks.size()) {
        if (!rare) add_block(block);
        add_block(other);
      } else if (everywhere && i > 1) {
        add_block(block);
      }
      add_block(blocks[i]);
    }
    finish();
  }
};

/// A small transformer whose token ids come from the pixels: an embedding, layers of attention and a row-parallel
/// product, and scores of the first token by a head or the embedding. The vocabulary of 7 is uneven over 2 to 6 ranks.
class Vocabulary : public nn::Model {
 public:
  static constexpr std::int64_t kTokens = 10;

  explicit Vocabulary(const Case& c) {
    const auto embedding =
        register_module("words", std::make_shared<nn::Embedding>(nn::Embedding::Options{kVocabulary, c.hidden, 0.2}));
    std::shared_ptr<nn::Linear> head;
    if (c.vocabulary == Case::Vocabulary::untied)
      head = register_module("head", std::make_shared<nn::Linear>(
                                         nn::Linear::Options{.in = c.hidden, .out = kVocabulary, .init_std = 0.2}));
    add_block(register_module("first", std::make_shared<First>(embedding, c.dropout)));
    for (std::int64_t i = 0; i < c.layers; ++i)
      add_block(register_module(fmt::format("mix{}", i), std::make_shared<Mix>(c)));
    add_block(register_module("last", std::make_shared<Last>(embedding, head)));
    finish();
  }
  std::int64_t tokens(const nn::Tensors&) const override { return kTokens; }

 private:
  struct First : nn::Block {
    First(std::shared_ptr<nn::Embedding> embedding, double p)
        : vocabulary(std::move(embedding)), dropout(register_module("dropout", std::make_shared<nn::Dropout>(p))) {
      register_module("words", vocabulary);
    }
    nn::Tensors forward(nn::Tensors inputs, const nn::Context& context) override {
      const auto pixels = inputs[0].flatten(1).narrow(1, 0, kTokens);
      const auto ids = (pixels.abs() * 10).floor().to(at::kLong).remainder(kVocabulary);
      return {dropout->forward(vocabulary->forward(ids, context), context)};
    }
    std::shared_ptr<nn::Embedding> vocabulary;
    std::shared_ptr<nn::Dropout> dropout;
  };
  struct Mix : nn::Block {
    explicit Mix(const Case& c)
        : attention(register_module("attention", std::make_shared<nn::SelfAttention>(nn::SelfAttention::Options{
                                                     .hidden = c.hidden, .heads = c.heads, .init_std = 0.2}))),
          inner(register_module("inner", std::make_shared<nn::Dropout>(c.dropout))),
          dense(register_module(
              "dense", std::make_shared<nn::Linear>(nn::Linear::Options{
                           .in = c.hidden, .out = c.hidden, .init_std = 0.2, .in_unit = c.hidden / c.heads}))) {}
    nn::Tensors forward(nn::Tensors inputs, const nn::Context& context) override {
      const auto mixed = inner->forward(attention->forward(inputs[0], context), context);
      return {inputs[0] + dense->forward(mixed, context)};
    }
    std::shared_ptr<nn::SelfAttention> attention;
    std::shared_ptr<nn::Dropout> inner;
    std::shared_ptr<nn::Linear> dense;
  };
  struct Last : nn::Block {
    Last(std::shared_ptr<nn::Embedding> embedding, std::shared_ptr<nn::Linear> own)
        : vocabulary(std::move(embedding)),
          head(std::move(own)),
          first(register_module("first", std::make_shared<nn::FirstToken>())) {
      if (head)
        register_module("head", head);
      else
        register_module("words", vocabulary);
    }
    nn::Tensors forward(nn::Tensors inputs, const nn::Context& context) override {
      const auto x = first->forward(inputs[0], context).squeeze(1);
      return {head ? head->forward(x, context) : vocabulary->scores(x, context, {})};
    }
    std::shared_ptr<nn::Embedding> vocabulary;
    std::shared_ptr<nn::Linear> head;
    std::shared_ptr<nn::FirstToken> first;
  };
};

}  // namespace

std::shared_ptr<data::Dataset> make_data(const Case& c) {
  return std::make_shared<Noise>(c.samples, c.pixels, c.width > 0 ? c.width : c.pixels);
}

std::shared_ptr<nn::Model> make_model(const Case& c) {
  if (c.adapted) {
    const torch::nn::Linear first(3 * c.pixels * c.pixels, c.hidden), second(c.hidden, kClasses);
    return nn::adapt(c.in_place ? torch::nn::Sequential(torch::nn::Flatten(), first, torch::nn::ReLU(true), second)
                                : torch::nn::Sequential(torch::nn::Flatten(), first, torch::nn::Tanh(), second));
  }
  if (c.vocabulary != Case::Vocabulary::none) return std::make_shared<Vocabulary>(c);
  models::vit::Options options;
  options.hidden_size = c.hidden;
  options.num_layers = c.layers;
  options.num_heads = c.heads;
  options.intermediate_size = c.mlp > 0 ? c.mlp : 2 * c.hidden;
  options.patch_size = c.patch;
  options.dropout = c.dropout;
  options.attention_dropout = c.dropout;
  const auto kind = models::all_models().at("vit");
  kind->resolve(&options, make_data(c)->spec());
  std::shared_ptr<nn::Model> model = kind->make(&options);
  if (c.unused_block) model = std::make_shared<WithBystander>(model);
  if (c.rare && !c.twice) model = std::make_shared<WithRare>(model, c.hidden);
  if (c.balance) model = std::make_shared<WithBalance>(model, c.hidden);
  if (c.twice) model = std::make_shared<Twice>(model, c.hidden, c.rare, c.everywhere);
  if (c.lora) nn::add_lora(*model, *c.lora);
  return model;
}

at::Tensor last_term(nn::Model& model) { return dynamic_cast<WithBalance&>(model).balance->last_term; }

nn::LoraOptions adapters() {
  return {.rank = 3, .alpha = 5, .dropout = 0.2, .train = std::vector<std::string>{"classifier"}};
}

}  // namespace trireme::tests
