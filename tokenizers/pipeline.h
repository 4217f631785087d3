// A tokenizer made of the parts that tokenizer.json has: added tokens, normalizer, pre-tokenizer, model,
// post-processor, decoder. A text goes through them in this order, and ids go back through the decoder.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "tokenizers/added_tokens.h"
#include "tokenizers/decoder.h"
#include "tokenizers/model.h"
#include "tokenizers/normalizer.h"
#include "tokenizers/post_processor.h"
#include "tokenizers/pre_tokenizer.h"
#include "tokenizers/tokenizer.h"

namespace trireme::tokenizers {

struct TokenizerParts {
  AddedTokens added;
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  std::unique_ptr<TokenModel> model;
  PostProcessor post_processor;
  Decoder decoder;  ///< null: a space between tokens
  SpecialTokens special;

  /// Of the model's tokens and the added ones.
  [[nodiscard]] std::optional<std::int32_t> id(const std::string& token) const;
  /// The highest id of both, plus one.
  [[nodiscard]] std::int64_t vocabulary() const;
};

/// @throws DataError when a text is too long or is not UTF-8; it names the byte
void check_text(std::string_view text);

/// Files by name, which Tokenizer::files() returns. `companions`: those that digest() leaves out, because no id depends
/// on them.
std::shared_ptr<const Tokenizer> make_pipeline(TokenizerParts parts, std::map<std::string, std::string> files,
                                               const std::map<std::string, std::string>& companions);

}  // namespace trireme::tokenizers
