#include "models/decoder.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>

#include <utility>

#include "core/nn/layers/tokens.h"
#include "models/parts.h"

namespace trireme::models {
namespace {

using nn::Context;
using nn::Tensors;

/// Its layers are children of the model, as those of the last block: the path is the block's own.
class DecoderEmbedBlock : public nn::Block {
 public:
  DecoderEmbedBlock(std::shared_ptr<nn::Embedding> words, std::shared_ptr<nn::Embedding> positions,
                    std::shared_ptr<nn::Unary> dropout, std::int64_t longest)
      : words_(register_module("words", std::move(words))), longest_(longest) {
    if (positions) positions_ = register_module("positions", std::move(positions));
    if (dropout) dropout_ = register_module("dropout", std::move(dropout));
    set_path("embed");
  }
  Tensors forward(Tensors inputs, const Context& context) override {
    const auto& ids = inputs.at(0);
    check_length(ids, longest_);
    auto x = words_->forward(ids, context);
    if (positions_) {
      const auto* given = context.side.find("position_ids");
      const auto positions = given == nullptr ? at::arange(ids.size(1), ids.options()).unsqueeze(0) : *given;
      x = x + positions_->forward(positions, context);
    }
    return {dropout_ ? dropout_->forward(x, context) : x};
  }

 private:
  std::shared_ptr<nn::Embedding> words_, positions_;
  std::shared_ptr<nn::Unary> dropout_;
  std::int64_t longest_;
};

class DecoderScoresBlock : public nn::Block {
 public:
  DecoderScoresBlock(std::shared_ptr<nn::Unary> norm, std::shared_ptr<nn::Unary> tokens,
                     std::shared_ptr<nn::Linear> own, std::shared_ptr<nn::Embedding> words)
      : norm_(register_module("norm", std::move(norm))), tokens_(register_module("tokens", std::move(tokens))) {
    if (own)
      own_ = register_module("own", std::move(own));
    else
      words_ = register_module("words", std::move(words));
    set_path("head");
  }
  Tensors forward(Tensors inputs, const Context& context) override {
    const auto x = tokens_->forward(norm_->forward(inputs.at(0), context), context);
    return {own_ ? own_->forward(x, context) : words_->scores(x, context, {})};
  }
  [[nodiscard]] bool returns_scores() const override { return true; }

 private:
  std::shared_ptr<nn::Unary> norm_, tokens_;
  std::shared_ptr<nn::Linear> own_;
  std::shared_ptr<nn::Embedding> words_;
};

}  // namespace

void Decoder::add_embeddings(Embeddings e) {
  add_block(std::make_shared<DecoderEmbedBlock>(std::move(e.tokens), std::move(e.positions), std::move(e.dropout),
                                                e.longest));
}

void Decoder::add_head(torch::nn::Module& model, std::shared_ptr<nn::Unary> norm, std::shared_ptr<nn::Linear> head,
                       std::shared_ptr<nn::Embedding> tied) {
  const auto scored = model.register_module("scored_tokens", std::make_shared<nn::AllTokens>());
  if (head) register_module("lm_head", head);
  add_block(std::make_shared<DecoderScoresBlock>(std::move(norm), scored, std::move(head), std::move(tied)));
  finish();
}

void check_running_text(const nn::DataSpec& data, const std::string& model, std::int64_t longest) {
  check_token_ids(data, model, longest);
  if (data.classes != 0)
    throw ConfigError(fmt::format(
        "model.name: \"{}\" has scores of the next token, but the data have a class for each sample; choose "
        "model.name = \"bert\", or data of running text (data.name = \"text\")",
        model));
}

}  // namespace trireme::models
