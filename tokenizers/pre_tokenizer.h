// PreTokenizer: cuts a normalized text into pieces, which the model encodes one by one ("pre_tokenizer" in
// tokenizer.json).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizers/pattern.h"

namespace trireme::tokenizers {

using Pieces = std::vector<std::string>;  ///< none is empty

/// Thread-safe.
class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  /// Appends the pieces of a text that is not empty. `is_first`: the user's text begins with it.
  virtual void split(std::string_view text, bool is_first, Pieces& out) const = 0;
};

/// BERT's: at white space, and each punctuation mark by itself.
class BertPreTokenizer : public PreTokenizer {
 public:
  void split(std::string_view text, bool is_first, Pieces& out) const override;
};

/// What becomes of a match where a text is split.
enum class SplitBehavior : std::uint8_t { removed, isolated, merged_with_previous, merged_with_next };

/// Splits where a pattern matches.
class SplitPreTokenizer : public PreTokenizer {
 public:
  /// `invert`: where it does not match.
  SplitPreTokenizer(Pattern pattern, SplitBehavior behavior, bool invert)
      : pattern_(std::move(pattern)), behavior_(behavior), invert_(invert) {}
  void split(std::string_view text, bool is_first, Pieces& out) const override;

 private:
  Pattern pattern_;
  SplitBehavior behavior_;
  bool invert_;
};

/// GPT-2's: words with the space before them, as the characters of their bytes (byte_level.h).
class ByteLevelPreTokenizer : public PreTokenizer {
 public:
  /// `use_regex`: false leaves the text whole.
  ByteLevelPreTokenizer(bool add_prefix_space, bool use_regex);
  void split(std::string_view text, bool is_first, Pieces& out) const override;

 private:
  bool add_prefix_space_;
  std::optional<SplitPreTokenizer> words_;
};

/// SentencePiece's: spaces are a visible character.
class MetaspacePreTokenizer : public PreTokenizer {
 public:
  enum class Prepend : std::uint8_t { always, first, never };
  /// `split`: at this character, else the text stays whole.
  MetaspacePreTokenizer(std::string replacement, Prepend prepend, bool split);
  void split(std::string_view text, bool is_first, Pieces& out) const override;

 private:
  std::string replacement_;
  Prepend prepend_;
  std::optional<SplitPreTokenizer> words_;
};

/// One after another; none: the text stays whole.
class PreTokenizerSequence : public PreTokenizer {
 public:
  explicit PreTokenizerSequence(std::vector<std::unique_ptr<PreTokenizer>> parts) : parts_(std::move(parts)) {}
  void split(std::string_view text, bool is_first, Pieces& out) const override;

 private:
  std::vector<std::unique_ptr<PreTokenizer>> parts_;
};

}  // namespace trireme::tokenizers
