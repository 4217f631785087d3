// GPT-2's alphabet: each of the 256 bytes has a printable character of its own, so that the tokens of any bytes are
// text (Radford et al., "Language models are unsupervised multitask learners", 2019).
#pragma once

#include <string>
#include <string_view>

#include "tokenizers/aligned_text.h"

namespace trireme::tokenizers {

/// The characters of the text's bytes.
AlignedText to_byte_level(const AlignedText& text);
/// The bytes of these characters; the token itself if one of them belongs to no byte.
std::string from_byte_level(std::string_view token);

}  // namespace trireme::tokenizers
