// PostProcessor: a sample of one or two texts, with the special tokens around them ("post_processor" in
// tokenizer.json).
#pragma once

#include <cstdint>
#include <optional>
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

  /// The sample of at most `max_tokens`: texts lose tokens at their ends, as with "longest_first".
  /// @throws UsageError when the special tokens alone are more
  [[nodiscard]] Encoded sample(Ids text, std::optional<Ids> second, std::int64_t max_tokens) const;
  /// The sample of one text up to that text's end.
  [[nodiscard]] Ids prompt(const Ids& text) const;
};

}  // namespace trireme::tokenizers
