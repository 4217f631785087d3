// Characters of UTF-8 text: their classes and case (unicode_tables.h).
//
// All functions but invalid_byte() and repaired() take valid UTF-8.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::tokenizers {

/// Texts are at most this long, also after normalization: ICU counts in 32 bits.
constexpr std::size_t kMostText = 1ULL << 30;  // bytes

/// The first byte that begins no valid UTF-8 character.
std::optional<std::size_t> invalid_byte(std::string_view text);

/// The text with each longest invalid sequence replaced by U+FFFD.
std::string repaired(std::string_view text);

/// The character at byte `at`, which moves behind it.
char32_t next_char(std::string_view text, std::size_t& at);
void append_char(std::string& text, char32_t c);
std::size_t count_chars(std::string_view text);
/// How many characters begin before each byte, and before the end.
std::vector<std::size_t> chars_before(std::string_view text);

/// The end of the extended grapheme cluster that begins at byte `at`: what a reader takes for one character (UAX 29).
std::size_t cluster_end(std::string_view text, std::size_t at);

bool is_ascii(std::string_view text);
bool is_white_space(char32_t c);
/// Of BERT: ASCII's punctuation and symbols, and Unicode's punctuation.
bool is_punctuation(char32_t c);
/// Of BERT: what is left out.
bool is_control(char32_t c);
/// Of BERT: marks that are left out.
bool is_nonspacing_mark(char32_t c);
bool is_mark(char32_t c);
bool is_number(char32_t c);
/// \w of Whitespace and of added tokens.
bool is_word_char(char32_t c);
/// In the blocks of unified and compatibility ideographs that BERT separates; kana and Hangul are not.
bool is_ideograph(char32_t c);

/// Each character's lowercase by itself, whatever stands around it. That of U+0130 alone has two characters: this is
/// the first, and kDotAbove the second.
char32_t lowercase(char32_t c);
inline constexpr char32_t kDottedI = 0x130, kDotAbove = 0x307;

}  // namespace trireme::tokenizers
