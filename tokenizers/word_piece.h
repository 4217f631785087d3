// WordPiece: a word is cut, from its beginning, into the longest tokens of the vocabulary (Devlin et al., "BERT:
// Pre-training of deep bidirectional transformers", 2019).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "tokenizers/model.h"

namespace trireme::tokenizers {

struct WordPieceOptions {
  std::int32_t unknown = 0;        ///< the id of a word that cannot be cut
  std::string prefix = "##";       ///< of the tokens that continue a word
  std::size_t longest_word = 100;  ///< characters; longer words are unknown
};
std::unique_ptr<TokenModel> word_piece(Vocabulary vocabulary, WordPieceOptions options);

}  // namespace trireme::tokenizers
