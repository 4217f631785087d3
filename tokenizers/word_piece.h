// WordPiece: a word is cut, from its beginning, into the longest tokens of the vocabulary (Devlin et al., "BERT:
// Pre-training of deep bidirectional transformers", 2019).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "tokenizers/model.h"

namespace trireme::tokenizers {

class WordPiece : public TokenModel {
 public:
  struct Options {
    std::int32_t unknown = 0;        ///< the id of a word that cannot be cut
    std::string prefix = "##";       ///< of the tokens that continue a word
    std::size_t longest_word = 100;  ///< characters; longer words are unknown
  };
  WordPiece(Vocabulary vocabulary, Options options) : TokenModel(std::move(vocabulary)), options_(std::move(options)) {}
  void encode(std::string_view piece, Ids& out) const override;
  [[nodiscard]] std::string kind() const override { return "WordPiece"; }

 private:
  Options options_;
};

}  // namespace trireme::tokenizers
