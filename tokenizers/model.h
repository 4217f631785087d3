// Model: the ids of one piece of text, which normalization and pre-tokenization have made.
#pragma once

#include <string>
#include <string_view>

#include "tokenizers/tokenizer.h"
#include "tokenizers/vocabulary.h"

namespace trireme::tokenizers {

/// Thread-safe.
class TokenModel {
 public:
  explicit TokenModel(Vocabulary vocabulary) : vocabulary_(std::move(vocabulary)) {}
  virtual ~TokenModel() = default;
  TokenModel(const TokenModel&) = delete;
  TokenModel& operator=(const TokenModel&) = delete;
  /// Appends the ids of `piece`, which is not empty.
  virtual void encode(std::string_view piece, Ids& out) const = 0;
  /// For the header of a run: "WordPiece".
  [[nodiscard]] virtual std::string kind() const = 0;
  [[nodiscard]] const Vocabulary& vocabulary() const { return vocabulary_; }

 private:
  Vocabulary vocabulary_;
};

}  // namespace trireme::tokenizers
