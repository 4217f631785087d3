// PostProcessor: a sample of one or two texts, with the special tokens around them ("post_processor" in
// tokenizer.json).
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "tokenizers/tokenizer.h"

namespace trireme::tokenizers {

/// One place of a sample: a text, or special tokens.
struct SamplePart {
  std::optional<int> text{};  ///< 0 or 1; unset: `ids`
  Ids ids{};
  std::int8_t type = 0;
};
/// Text 0 occurs once; text 1 once in the template of pairs.
using SampleTemplate = std::vector<SamplePart>;

struct PostProcessor {
  SampleTemplate single{{0, {}, 0}};
  SampleTemplate pair{{0, {}, 0}, {1, {}, 1}};

  /// Of byte-level tokens: the white space of a token is not in the bytes that it stands for ("trim_offsets").
  bool trims = false;
  bool keeps_first_space = true;  ///< of a text, which may have been added to it ("add_prefix_space")

  /// The sample of at most `max_tokens`: texts lose tokens at their ends, as with "longest_first".
  /// @throws UsageError when the special tokens alone are more
  [[nodiscard]] Encoded sample(Ids text, std::optional<Ids> second, std::int64_t max_tokens) const;
  /// A sample of the tokens of one or two texts; those around them have no text. `special`: false leaves these out.
  [[nodiscard]] std::vector<Token> around(const std::vector<std::vector<Token>>& texts, bool special) const;
  /// The bytes of `text` that a token stands for without the white space, if that is left out. `token`: what the model
  /// has made a token of; `is_first`: of the text.
  [[nodiscard]] Range trimmed(Range bytes, std::string_view token, bool is_first, std::string_view text) const;
  /// The sample of one text up to that text's end.
  [[nodiscard]] Ids prompt(const Ids& text) const;
};

}  // namespace trireme::tokenizers
