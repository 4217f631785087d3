// The files that a tokenizer is loaded from, in memory, and what each kind of them describes.
#pragma once

#include <map>
#include <string>

#include "tokenizers/json_view.h"
#include "tokenizers/pipeline.h"

namespace trireme::tokenizers {

struct TokenizerFile {
  std::string path;  ///< for messages
  std::string content;
};
using TokenizerFiles = std::map<std::string, TokenizerFile>;  ///< by name: "tokenizer.json"

/// The parts that the files describe. @throws DataError
TokenizerParts read_tokenizer_json(const TokenizerFiles& files);
/// BERT's vocab.txt, one token a line, and the options in tokenizer_config.json.
TokenizerParts read_vocab_txt(const TokenizerFiles& files);
/// GPT-2's vocab.json and merges.txt.
TokenizerParts read_vocab_and_merges(const TokenizerFiles& files);

}  // namespace trireme::tokenizers
