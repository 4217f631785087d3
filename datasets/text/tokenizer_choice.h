// The tokenizer of a data set of texts, and its chat template: what the keys name, or what is beside the weights.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "core/data/datasets.h"
#include "tokenizers/chat_template.h"
#include "tokenizers/tokenizer.h"

namespace trireme::datasets {

/// What the key's text says, for its field table.
inline constexpr const char* kTokenizerText =
    "A folder with a tokenizer in Hugging Face's files (tokenizer.json, or vocab.json with merges.txt, vocab.txt, or "
    "tokenizer.model), "
    "such a file, a model of the Hugging Face Hub that is on this machine, or \"bytes\": each byte is a token. Unset: "
    "that beside the weights that the model starts from";

/// The folder of the weights, if it has a tokenizer; else "".
std::string tokenizer_of_weights(const std::string& weights);

/// Loads what the key names. Sets it to a path that does not depend on the current folder.
/// @throws DataError, CheckpointError as load_tokenizer() and locate_weights()
std::shared_ptr<const tokenizers::Tokenizer> load_named_tokenizer(std::string& named);

/// The token that ends a text: the one of that name, or what ends a text of BERT's tokenizers.
std::optional<std::int32_t> end_of_text(const tokenizers::SpecialTokens& special);

/// For DataSpec::tokens.
nn::TokenIds token_ids(const tokenizers::Tokenizer& tokenizer);

/// Loads the tokenizer and sets an option that is unset or empty; it holds a path from any folder then. `usual`:
/// without the key and without weights; nullopt: the key is required. Weights were trained on the tokens of some
/// tokenizer, so that with them the key is required, too, unless theirs is beside them.
/// @throws ConfigError; DataError, CheckpointError as load_tokenizer() and locate_weights()
std::shared_ptr<const tokenizers::Tokenizer> choose_tokenizer(std::optional<std::string>& option,
                                                              const std::optional<std::string>& usual,
                                                              const data::OpenContext& context);

/// The template that data.chat_template names, as ChatTemplate::of(). A path becomes one from any folder.
std::optional<tokenizers::ChatTemplate> choose_chat_template(std::string& option,
                                                             const tokenizers::Tokenizer& tokenizer);

}  // namespace trireme::datasets
