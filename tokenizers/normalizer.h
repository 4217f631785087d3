// Normalizer: what happens to a text before it is cut into pieces ("normalizer" in tokenizer.json).
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tokenizers/aligned_text.h"
#include "tokenizers/normal_form.h"
#include "tokenizers/pattern.h"

namespace trireme::tokenizers {

/// Of valid UTF-8. Thread-safe. @throws DataError when the result has more than kMostText bytes
using Normalizer = std::function<AlignedText(const AlignedText& text)>;

struct BertNormalizerOptions {
  bool clean_text = true, handle_chinese_chars = true, strip_accents = true, lowercase = true;
};

/// BERT's: control characters are removed, white space becomes spaces, ideographs are set between spaces, accents are
/// removed, letters become lowercase; each if it is on, in this order.
Normalizer bert_normalizer(BertNormalizerOptions options);

Normalizer normal_form_normalizer(NormalForm form);
Normalizer lowercase_normalizer();
/// Leaves out marks, as accents are after a decomposition.
Normalizer strip_accents_normalizer();
/// Removes white space at the ends.
Normalizer strip_normalizer(bool left, bool right);
/// The cleaning of Google's neural machine translation: control characters are left out, and other characters that
/// take up space become spaces.
Normalizer nmt_normalizer();
/// The characters of the text's bytes (byte_level.h).
Normalizer byte_level_normalizer();

/// Puts something before every text that is not empty.
Normalizer prepend_normalizer(std::string prefix);

Normalizer replace_normalizer(Pattern pattern, std::string content);

/// One after another; none: the text does not change.
Normalizer normalizer_sequence(std::vector<Normalizer> parts);

/// The text with each match of the pattern replaced. @throws DataError when it has more than kMostText bytes
AlignedText replaced(const AlignedText& text, const Pattern& pattern, const std::string& content);
/// The text with a prefix, which stands for the first character; an empty text stays as it is.
AlignedText prepended(const AlignedText& text, const std::string& prefix);

}  // namespace trireme::tokenizers
