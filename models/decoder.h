// What decoders of text share: a first block "embed", layers of the model's own, and a last block "head" with the
// scores of every token id for each token. One tensor, hidden [B, N, H], passes between the blocks.
//
// Inputs: input_ids int64 [B, N]. Side inputs, which the data may lack: attention_mask [B, N] (nonzero for tokens that
// count; all), document_ids [B, N] (a token attends to those of its own document; one), position_ids [B, N] (0, 1,
// ...). Output: [B, N, V]. V token ids.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/nn/block.h"
#include "core/nn/data_spec.h"
#include "core/nn/layers/embedding.h"
#include "core/nn/layers/linear.h"

namespace trireme::models {

class Decoder : public nn::Model {
 public:
  [[nodiscard]] std::vector<std::string> input_names() const override { return {"input_ids"}; }
  [[nodiscard]] std::vector<std::string> side_input_names() const override {
    return {"attention_mask", "document_ids", "position_ids"};
  }
  [[nodiscard]] bool releases_outputs() const override { return true; }
  [[nodiscard]] std::int64_t tokens(const nn::Tensors& inputs) const override { return inputs.at(0).size(1); }

 protected:
  struct Embeddings {
    std::shared_ptr<nn::Embedding> tokens;
    std::int64_t longest = 0;                    ///< the most tokens of a sample
    std::shared_ptr<nn::Embedding> positions{};  ///< null: the layers' attention has the positions
    std::shared_ptr<nn::Unary> dropout{};        ///< null: none
  };
  /// For constructors, as add_block(): first the embeddings, then the layers, then the head, which calls finish().
  void add_embeddings(Embeddings embeddings);
  /// `norm` is a child of `model`, which gets the child "scored_tokens". `head`: null where `tied` has the weights.
  void add_head(torch::nn::Module& model, std::shared_ptr<nn::Unary> norm, std::shared_ptr<nn::Linear> head,
                std::shared_ptr<nn::Embedding> tied);
};

/// For a decoder whose samples have at most `longest` tokens. @throws ConfigError for other data than running text
void check_running_text(const nn::DataSpec& data, const std::string& model, std::int64_t longest);

}  // namespace trireme::models
