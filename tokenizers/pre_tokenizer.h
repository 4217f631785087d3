// PreTokenizer: cuts a normalized text into pieces, which the model encodes one by one ("pre_tokenizer" in
// tokenizer.json).
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tokenizers/aligned_text.h"
#include "tokenizers/pattern.h"

namespace trireme::tokenizers {

using Pieces = std::vector<AlignedText>;  ///< none is empty

/// Appends the pieces of a text that is not empty. `is_first`: the user's text begins with it. Thread-safe.
using PreTokenizer = std::function<void(const AlignedText& text, bool is_first, Pieces& out)>;

/// BERT's: at white space, and each punctuation mark by itself.
PreTokenizer bert_pre_tokenizer();

/// What becomes of a match where a text is split.
enum class SplitBehavior : std::uint8_t { removed, isolated, merged_with_previous, merged_with_next, contiguous };

/// Splits where a pattern matches. `invert`: where it does not match.
PreTokenizer split_pre_tokenizer(Pattern pattern, SplitBehavior behavior, bool invert);

/// Runs of the characters of words, and of others, without white space: \w+|[^\w\s]+.
PreTokenizer whitespace_pre_tokenizer();

/// Pieces of so many characters; the last may be shorter.
PreTokenizer fixed_length_pre_tokenizer(std::size_t length);

/// GPT-2's: words with the space before them, as the characters of their bytes (byte_level.h). `use_regex`: false
/// leaves the text whole.
PreTokenizer byte_level_pre_tokenizer(bool add_prefix_space, bool use_regex);

enum class Prepend : std::uint8_t { always, first, never };

/// SentencePiece's: spaces are a visible character. `split`: at this character, else the text stays whole.
PreTokenizer metaspace_pre_tokenizer(std::string replacement, Prepend prepend, bool split);

/// One after another; none: the text stays whole.
PreTokenizer pre_tokenizer_sequence(std::vector<PreTokenizer> parts);

}  // namespace trireme::tokenizers
