// Decoder: makes a text of the tokens of ids ("decoder" in tokenizer.json).
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "tokenizers/pattern.h"

namespace trireme::tokenizers {

using Tokens = std::vector<std::string>;

/// One step; the text is what remains, joined. Thread-safe.
using Decoder = std::function<Tokens(Tokens)>;

/// Joins the pieces of words, and puts a space between words. `cleanup`: no space before punctuation marks and English
/// contractions.
Decoder word_piece_decoder(std::string prefix, bool cleanup);

/// The bytes of byte_level.h's characters, with U+FFFD for those that are not UTF-8.
Decoder byte_level_decoder();

/// Neighbouring tokens such as "<0x0A>" are bytes: their text, or U+FFFD for each where they are not UTF-8.
Decoder byte_fallback_decoder();

/// SentencePiece's: the visible character becomes a space, but in the first token it is left out.
Decoder metaspace_decoder(std::string replacement, bool drop_in_first);

/// In each token.
Decoder replace_decoder(Pattern pattern, std::string content);

/// The end of a word, in each token, becomes a space, and nothing in the last one.
Decoder bpe_decoder(std::string suffix);

/// Of tokens that a speech recogniser gives for each moment: of equal neighbours one remains, padding goes, and the
/// word delimiter is a space. `cleanup`: as for word_piece_decoder().
Decoder ctc_decoder(std::string padding, std::string delimiter, bool cleanup);

/// Makes one token of all.
Decoder fuse_decoder();

/// Removes a character from both ends of each token, at most so many times.
Decoder strip_decoder(std::string content, std::size_t start, std::size_t stop);

Decoder decoder_sequence(std::vector<Decoder> parts);

}  // namespace trireme::tokenizers
