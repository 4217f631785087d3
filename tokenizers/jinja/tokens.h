// The tokens of a template's source.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizers/jinja/value.h"

namespace trireme::jinja {

enum class TokenKind : std::uint8_t { text, name, literal, symbol, end };

/// The brackets of tags are symbols too: "{{", "}}", "{%" and "%}".
struct Token {
  TokenKind kind;
  std::size_t line;
  std::string text;
  Value value;  ///< of a literal
};

/// Blocks are trimmed as transformers has it: a newline behind a block or a comment goes, and so does white space
/// before it on its line. The last token is TokenKind::end. @throws Problem with the line
std::vector<Token> tokens_of(std::string_view source);

}  // namespace trireme::jinja
