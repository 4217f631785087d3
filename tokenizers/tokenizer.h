// Tokenizer: text to token ids and back, equal to Hugging Face's tokenizer of the same files. Text is UTF-8.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizers/aligned_text.h"

namespace trireme::tokenizers {

using Ids = std::vector<std::int32_t>;

/// Tokens with a meaning of their own; unset: the tokenizer has none.
struct SpecialTokens {
  std::optional<std::int32_t> unknown, padding, mask;
  std::optional<std::int32_t> cls, sep;    ///< begin a sample and end each of its texts (BERT)
  std::optional<std::int32_t> begin, end;  ///< of a document (GPT-2, Llama)
};

/// One sample made of one or two texts, with the special tokens that the tokenizer puts around them.
struct Encoded {
  Ids ids;
  std::vector<std::int8_t> types;  ///< 0: of the first text, 1: of the second
};

/// A token of a sample, and what it stands for.
struct Token {
  std::int32_t id = 0;
  std::string text{};       ///< as the vocabulary has it
  std::optional<int> of{};  ///< 0: the first text, 1: the second; unset: the tokenizer has put it around them
  Range bytes{};            ///< of that text
};

/// Thread-safe.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  /// Ids of a text, without special tokens around it; special tokens written in the text keep their ids.
  /// @throws DataError that names the byte where the text is not UTF-8
  [[nodiscard]] virtual Ids encode(std::string_view text) const = 0;
  /// A sample of at most `max_tokens` tokens: of two texts, the longer one loses tokens at its end first, as with
  /// Hugging Face's truncation "longest_first". @throws DataError as encode()
  [[nodiscard]] virtual Encoded encode_sample(std::string_view text, std::optional<std::string_view> pair,
                                              std::int64_t max_tokens) const = 0;
  /// Of a text that a model is to continue: a sample without the tokens that the tokenizer puts behind its text. End
  /// tokens that the text itself has stay. @throws DataError as encode()
  [[nodiscard]] virtual Ids encode_prompt(std::string_view text) const = 0;
  /// What encode_sample() makes of texts of any length, token by token; `special`: with the tokens that the tokenizer
  /// puts around them. @throws DataError as encode()
  [[nodiscard]] virtual std::vector<Token> tokenize(std::string_view text, std::optional<std::string_view> pair,
                                                    bool special) const = 0;
  /// The text of these ids. Bytes that are not UTF-8 become U+FFFD. Special tokens are left out.
  [[nodiscard]] virtual std::string decode(std::span<const std::int32_t> ids) const = 0;
  /// Ids are 0 to vocabulary() - 1.
  [[nodiscard]] virtual std::int64_t vocabulary() const = 0;
  [[nodiscard]] virtual const SpecialTokens& special() const = 0;
  /// Of everything that the ids depend on: equal digests, equal ids.
  [[nodiscard]] virtual std::string digest() const = 0;
  /// The files by name that belong beside exported weights, so that others can load the tokenizer: those that it was
  /// loaded from ("tokenizer.json", "vocab.txt").
  [[nodiscard]] virtual std::map<std::string, std::string> files() const = 0;
  /// For the header of a run: "WordPiece, 30,522 tokens".
  [[nodiscard]] virtual std::string about() const = 0;
};

/// `path`: "bytes" (each byte is a token, 0 to 255), a file, or a folder with such a file. Files, in this order of
/// preference: tokenizer.json (Hugging Face's tokenizers), vocab.json with merges.txt (GPT-2), vocab.txt (BERT; its
/// tokenizer_config.json says do_lower_case, which is true without one), tokenizer.model (SentencePiece, or tiktoken's
/// ranks). Any .model or .tiktoken may be named.
/// @throws DataError that names file and line, and what is not supported
std::shared_ptr<const Tokenizer> load_tokenizer(const std::string& path);
/// The same of files in memory, by name. @throws DataError
std::shared_ptr<const Tokenizer> load_tokenizer(const std::map<std::string, std::string>& files);

}  // namespace trireme::tokenizers
