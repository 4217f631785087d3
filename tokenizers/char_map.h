// SentencePiece's compiled normalization: which characters become which text ("precompiled_charsmap").
#pragma once

#include <string>
#include <string_view>

#include "tokenizers/normalizer.h"

namespace trireme::tokenizers {

/// `bytes`: the size in bytes of a double-array trie, the trie, whose values are offsets, and texts that end with a
/// zero byte. Numbers have 32 bits, little-endian. As Hugging Face's library does it, a grapheme cluster of less than 6
/// bytes becomes the text of the shortest entry that it begins with, else each of its characters does. Source: Yata,
/// "darts-clone: a clone of Darts (Double-ARray Trie System)"; SentencePiece, normalizer.cc.
/// @throws PartError when the bytes are damaged
Normalizer char_map_normalizer(std::string_view bytes);

}  // namespace trireme::tokenizers
