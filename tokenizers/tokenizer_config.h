// tokenizer_config.json and special_tokens_map.json: which tokens have which meaning, and options of BERT's and
// decoders' tokenizers. Either file may be missing.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tokenizers/tokenizer_files.h"

namespace trireme::tokenizers {

class TokenizerConfig {
 public:
  using Exists = std::function<bool(const std::string&)>;  ///< whether the tokenizer has a token of this text

  explicit TokenizerConfig(const TokenizerFiles& files);
  TokenizerConfig(const TokenizerConfig&) = delete;  // the views are of its own values
  TokenizerConfig& operator=(const TokenizerConfig&) = delete;

  /// A view of tokenizer_config.json; of an empty object without one.
  [[nodiscard]] const JsonView& json() const { return json_; }
  /// The text of a token ("unk_token"): that of the files, else the first of `usual` that exists; unset where the files
  /// say null. @throws DataError when a token that a file names does not exist
  [[nodiscard]] std::optional<std::string> token(const std::string& key, const std::vector<std::string>& usual,
                                                 const Exists& exists) const;
  /// All special tokens that the files name.
  [[nodiscard]] std::vector<std::string> named_tokens() const;
  /// For a tokenizer that is made of a file of SentencePiece or tiktoken: refuses what its reader does not do.
  /// `may_be_llama`: the file has nothing that Llama's class would do otherwise. @throws DataError
  void check_for_piece_file(const TokenizerParts& parts, bool may_be_llama) const;
  /// Sets parts.special. @throws as token()
  void set_special(TokenizerParts& parts) const;
  /// add_bos_token and add_eos_token: a sample is its texts, each with these around it.
  void set_begin_and_end(TokenizerParts& parts) const;

 private:
  /// Where a file speaks of the token; null where none does.
  [[nodiscard]] JsonView find(const std::string& key) const;

  nlohmann::json config_, map_;
  JsonView json_, map_json_;
};

}  // namespace trireme::tokenizers
