// Decoder: makes a text of the tokens of ids ("decoder" in tokenizer.json).
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "tokenizers/pattern.h"

namespace trireme::tokenizers {

using Tokens = std::vector<std::string>;

/// One step; the text is what remains, joined. Thread-safe.
class Decoder {
 public:
  virtual ~Decoder() = default;
  [[nodiscard]] virtual Tokens apply(Tokens tokens) const = 0;
};

/// Joins the pieces of words, and puts a space between words.
class WordPieceDecoder : public Decoder {
 public:
  /// `cleanup`: no space before punctuation marks and English contractions.
  WordPieceDecoder(std::string prefix, bool cleanup) : prefix_(std::move(prefix)), cleanup_(cleanup) {}
  [[nodiscard]] Tokens apply(Tokens tokens) const override;

 private:
  std::string prefix_;
  bool cleanup_;
};

/// The bytes of byte_level.h's characters, with U+FFFD for those that are not UTF-8.
class ByteLevelDecoder : public Decoder {
 public:
  [[nodiscard]] Tokens apply(Tokens tokens) const override;
};

/// Neighbouring tokens such as "<0x0A>" are bytes: their text, or U+FFFD for each where they are not UTF-8.
class ByteFallbackDecoder : public Decoder {
 public:
  [[nodiscard]] Tokens apply(Tokens tokens) const override;
};

/// SentencePiece's: the visible character becomes a space, but in the first token it is left out.
class MetaspaceDecoder : public Decoder {
 public:
  MetaspaceDecoder(std::string replacement, bool drop_in_first)
      : replacement_(Pattern::of_literal(std::move(replacement))), drop_in_first_(drop_in_first) {}
  [[nodiscard]] Tokens apply(Tokens tokens) const override;

 private:
  Pattern replacement_;
  bool drop_in_first_;
};

/// In each token.
class ReplaceDecoder : public Decoder {
 public:
  ReplaceDecoder(Pattern pattern, std::string content) : pattern_(std::move(pattern)), content_(std::move(content)) {}
  [[nodiscard]] Tokens apply(Tokens tokens) const override;

 private:
  Pattern pattern_;
  std::string content_;
};

/// Makes one token of all.
class FuseDecoder : public Decoder {
 public:
  [[nodiscard]] Tokens apply(Tokens tokens) const override;
};

/// Removes a character from both ends of each token, at most so many times.
class StripDecoder : public Decoder {
 public:
  StripDecoder(std::string content, std::size_t start, std::size_t stop)
      : content_(std::move(content)), start_(start), stop_(stop) {}
  [[nodiscard]] Tokens apply(Tokens tokens) const override;

 private:
  std::string content_;
  std::size_t start_, stop_;
};

class DecoderSequence : public Decoder {
 public:
  explicit DecoderSequence(std::vector<std::unique_ptr<Decoder>> parts) : parts_(std::move(parts)) {}
  [[nodiscard]] Tokens apply(Tokens tokens) const override;

 private:
  std::vector<std::unique_ptr<Decoder>> parts_;
};

}  // namespace trireme::tokenizers
