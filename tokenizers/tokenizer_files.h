// The files that a tokenizer is loaded from, in memory, and what each kind of them describes.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizers/json_view.h"
#include "tokenizers/pipeline.h"

namespace trireme::tokenizers {

class TokenizerConfig;  // tokenizer_config.h

/// The file of SentencePiece or tiktoken, whatever the user's is called.
inline constexpr const char* kPieceFile = "tokenizer.model";
inline constexpr std::size_t kLongestPiece = 4096;  ///< bytes; to find its merges takes the square of its length

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

/// SentencePiece's file, a protocol buffer: the ids are those of SentencePiece's own encode(), as transformers 5 makes
/// them of such a file. It does not say which tokens are put around a text; tokenizer_config.json may.
TokenizerParts read_sentencepiece(const TokenizerFiles& files);
/// tiktoken's ranks, "BASE64 RANK" a line, in the same place as SentencePiece's file. A text is cut by the expression
/// of cl100k_base, which Llama 3 has too; special tokens are those that tokenizer_config.json lists.
TokenizerParts read_tiktoken(const TokenizerFiles& files);
/// Whether a file seems to be tiktoken's.
bool is_tiktoken(std::string_view content);

/// The added tokens of a tokenizer without tokenizer.json: those of tokenizer_config.json, and the special ones that
/// are in the vocabulary, by these names or those that the file gives them. `as_written`: as AddedTokensReader's.
AddedTokens read_added_tokens(const TokenizerFiles& files, const TokenizerConfig& config,
                              std::vector<std::string> special, const TokenizerParts& parts, const std::string& path,
                              bool as_written = false);

}  // namespace trireme::tokenizers
