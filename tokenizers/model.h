// Model: the ids of one piece of text, which normalization and pre-tokenization have made.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizers/tokenizer.h"
#include "tokenizers/vocabulary.h"

namespace trireme::tokenizers {

/// A token, and the bytes of the piece that it stands for.
struct PieceToken {
  std::int32_t id = 0;
  std::uint32_t begin = 0, end = 0;
};
using PieceTokens = std::vector<PieceToken>;

/// Thread-safe.
class TokenModel {
 public:
  explicit TokenModel(Vocabulary vocabulary) : vocabulary_(std::move(vocabulary)) {}
  virtual ~TokenModel() = default;
  TokenModel(const TokenModel&) = delete;
  TokenModel& operator=(const TokenModel&) = delete;
  /// Appends the tokens of `piece`, which is not empty.
  virtual void encode(std::string_view piece, PieceTokens& out) const = 0;
  /// For the header of a run: "WordPiece".
  [[nodiscard]] virtual std::string kind() const = 0;
  [[nodiscard]] const Vocabulary& vocabulary() const { return vocabulary_; }

 private:
  Vocabulary vocabulary_;
};

/// WordPiece: a word is cut, from its beginning, into the longest tokens of the vocabulary (Devlin et al., "BERT:
/// Pre-training of deep bidirectional transformers", 2019).
struct WordPieceOptions {
  std::int32_t unknown = 0;        ///< the id of a word that cannot be cut
  std::string prefix = "##";       ///< of the tokens that continue a word
  std::size_t longest_word = 100;  ///< characters; longer words are unknown
};
std::unique_ptr<TokenModel> word_piece(Vocabulary vocabulary, WordPieceOptions options);

/// WordLevel: each piece is a token, or the unknown one.
std::unique_ptr<TokenModel> word_level(Vocabulary vocabulary, std::int32_t unknown);

}  // namespace trireme::tokenizers
