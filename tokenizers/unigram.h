// Unigram: of all ways to cut a piece into tokens, the one whose scores have the greatest sum (Kudo, "Subword
// Regularization: Improving Neural Network Translation Models with Multiple Subword Candidates", 2018), found by
// Viterbi's method. SentencePiece's default, as in T5, ALBERT and XLM-R.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "tokenizers/model.h"

namespace trireme::tokenizers {

struct UnigramOptions {
  /// Of a character that begins no token; neighbouring ones are one token. Its score is 10 below the lowest one. Unset:
  /// encode() throws DataError for such a character.
  std::optional<std::int32_t> unknown{};
  bool byte_fallback = false;  ///< unknown characters are the tokens of their bytes, "<0x0A>"
};
/// `scores`: logarithms of probabilities, by id. @pre one for each id of the vocabulary
std::unique_ptr<TokenModel> unigram(Vocabulary vocabulary, std::vector<double> scores, UnigramOptions options);

}  // namespace trireme::tokenizers
