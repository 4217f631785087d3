// Reads added tokens, whose ids Hugging Face's library gives out in their order and does not take from the file.
#pragma once

#include <string>
#include <vector>

#include "tokenizers/added_tokens.h"
#include "tokenizers/json_view.h"
#include "tokenizers/normalizer.h"

namespace trireme::tokenizers {

class AddedTokensReader {
 public:
  /// `model` outlives the reader.
  explicit AddedTokensReader(const Vocabulary& model) : model_(model) {}

  /// Adds the token in `json`. @throws DataError when `id` is not the one that it gets: the model's of this text, else
  /// the next after the model's tokens and those added before
  void add(const JsonView& json, std::int64_t id);
  /// Adds special tokens of the model that are to be found in texts; others and those that are there are left out.
  void add_special(const std::vector<std::string>& contents);
  /// @throws DataError that names `path` when the normalized form of a token is empty
  AddedTokens finish(const Normalizer& normalizer, const std::string& path);

 private:
  [[nodiscard]] std::int64_t next_id() const;

  const Vocabulary& model_;
  Vocabulary added_;
  std::vector<AddedToken> tokens_;
};

}  // namespace trireme::tokenizers
