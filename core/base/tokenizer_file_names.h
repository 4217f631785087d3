// The files of Hugging Face's tokenizers, by name. They belong beside the weights of a model of text.
#pragma once

namespace trireme {

/// Those from which ids follow come first; the chat template and SentencePiece's file are for other programs.
inline constexpr const char* kTokenizerFiles[] = {
    "tokenizer.json",          "vocab.json",        "merges.txt",      "vocab.txt",          "tokenizer_config.json",
    "special_tokens_map.json", "added_tokens.json", "tokenizer.model", "chat_template.jinja"};

}  // namespace trireme
