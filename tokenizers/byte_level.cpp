#include "tokenizers/byte_level.h"

#include <unicode/utf8.h>

#include <array>

#include "tokenizers/unicode.h"

namespace trireme::tokenizers {
namespace {

constexpr char32_t kAlphabetEnd = 0x144;  // the characters are below this

constexpr bool is_printable(unsigned byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xFF && byte != 0xAD);
}

struct Alphabet {
  std::array<char32_t, 256> char_of{};
  std::array<int, kAlphabetEnd> byte_of{};
};

/// Printable bytes are Latin-1's characters; the others have, in their order, the characters from U+0100 on.
constexpr Alphabet make_alphabet() {
  Alphabet out;
  out.byte_of.fill(-1);
  char32_t next = 0x100;
  for (unsigned byte = 0; byte < 256; ++byte) {
    const char32_t c = is_printable(byte) ? byte : next++;
    out.char_of[byte] = c;
    out.byte_of[c] = static_cast<int>(byte);
  }
  return out;
}

constexpr Alphabet kAlphabet = make_alphabet();

}  // namespace

AlignedText to_byte_level(const AlignedText& text) {
  TextEdit out(text);
  for (const char byte : text.text()) {
    const auto c = kAlphabet.char_of[static_cast<unsigned char>(byte)];
    U8_IS_TRAIL(byte) ? out.insert(c) : out.replace(c);
  }
  return out.finish();
}

std::string from_byte_level(std::string_view token) {
  std::string out;
  out.reserve(token.size());
  for (std::size_t at = 0; at < token.size();) {
    const auto c = next_char(token, at);
    if (c >= kAlphabetEnd || kAlphabet.byte_of[c] < 0) return std::string(token);
    out += static_cast<char>(kAlphabet.byte_of[c]);
  }
  return out;
}

}  // namespace trireme::tokenizers
