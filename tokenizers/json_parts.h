// The parts of tokenizer.json, one function each. What is not supported is refused by its name.
#pragma once

#include <string>

#include "tokenizers/bpe.h"
#include "tokenizers/json_view.h"
#include "tokenizers/pipeline.h"

namespace trireme::tokenizers {

Normalizer read_normalizer(const JsonView& json);
PreTokenizer read_pre_tokenizer(const JsonView& json);
/// Null for null.
Decoder read_decoder(const JsonView& json);
/// `byte_level`: the pieces are characters of bytes. Sets parts.model and parts.special.unknown.
void read_model(const JsonView& json, bool byte_level, TokenizerParts& parts);
/// Ids must be tokens of `parts`.
PostProcessor read_post_processor(const JsonView& json, const TokenizerParts& parts);

/// Tokens by id: {"a": 0}.
Vocabulary read_vocabulary(const JsonView& json);
/// Adds the merge of two tokens, the `rank`th. `prefix`: of tokens within a word, which the merged one lacks. @throws
/// PartError that says which token is not in the vocabulary
void add_merge(const Vocabulary& vocabulary, const std::string& left, const std::string& right, std::size_t rank,
               MergeTable& merges, const std::string& prefix = "");

}  // namespace trireme::tokenizers
