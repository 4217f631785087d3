// Normalizer: what happens to a text before it is cut into pieces ("normalizer" in tokenizer.json).
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tokenizers/pattern.h"
#include "tokenizers/unicode.h"

namespace trireme::tokenizers {

/// Of valid UTF-8. Thread-safe. @throws DataError when the result has more than kMostText bytes
using Normalizer = std::function<std::string(const std::string& text)>;

struct BertNormalizerOptions {
  bool clean_text = true, handle_chinese_chars = true, strip_accents = true, lowercase = true;
};

/// BERT's: control characters are removed, white space becomes spaces, ideographs are set between spaces, accents are
/// removed, letters become lowercase; each if it is on, in this order.
Normalizer bert_normalizer(BertNormalizerOptions options);

Normalizer normal_form_normalizer(NormalForm form);

/// Puts something before every text that is not empty.
Normalizer prepend_normalizer(std::string prefix);

Normalizer replace_normalizer(Pattern pattern, std::string content);

/// One after another; none: the text does not change.
Normalizer normalizer_sequence(std::vector<Normalizer> parts);

/// The text with each match of the pattern replaced. @throws DataError when it has more than kMostText bytes
std::string replaced(const std::string& text, const Pattern& pattern, const std::string& content);

}  // namespace trireme::tokenizers
