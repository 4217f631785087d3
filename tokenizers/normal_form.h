// Unicode's normal forms (UAX 15) of the characters of Unicode 9, as Hugging Face's library has them; younger ones stay
// as they are. The properties are ICU's: those of a character do not change once it is in Unicode, so that every ICU
// will do.
#pragma once

#include <cstdint>

#include "tokenizers/aligned_text.h"

namespace trireme::tokenizers {

enum class NormalForm : std::uint8_t { nfc, nfd, nfkc, nfkd };

/// @throws DataError when the result has more than kMostText bytes
AlignedText normal_form(const AlignedText& text, NormalForm form);

}  // namespace trireme::tokenizers
