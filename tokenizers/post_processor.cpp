#include "tokenizers/post_processor.h"

#include <unicode/utf8.h>

#include <algorithm>
#include <array>

#include "core/base/error.h"
#include "core/base/text.h"
#include "tokenizers/byte_level.h"
#include "tokenizers/unicode.h"

namespace trireme::tokenizers {
namespace {

std::int64_t special_tokens(const SampleTemplate& parts) {
  std::size_t count = 0;
  for (const auto& part : parts) count += part.ids.size();
  return static_cast<std::int64_t>(count);
}

/// How many tokens remain of two texts that together may have `most`. The shorter one keeps all it has if the other can
/// lose enough; else each has a half, and the longer one (of two equal ones the second) the odd token.
std::pair<std::size_t, std::size_t> longest_first(std::size_t first, std::size_t second, std::size_t most) {
  if (first + second <= most) return {first, second};
  const auto shorter = std::min(first, second);
  auto few = shorter, many = most - std::min(shorter, most);
  if (many < shorter) {
    few = most / 2;
    many = most - few;
  }
  return first > second ? std::pair(many, few) : std::pair(few, many);
}

/// How many of the characters at the beginning and at the end of a token are white space, byte-level or not.
std::pair<std::size_t, std::size_t> spaces_around(std::string_view token) {
  static const auto space = to_byte_level(AlignedText(" ")).text();
  std::size_t leading = 0, trailing = 0, count = 0;
  for (std::size_t at = 0; at < token.size(); ++count) {
    const auto begin = at;
    const bool is_space = is_white_space(next_char(token, at)) || token.substr(begin, at - begin) == space;
    trailing = is_space ? trailing + 1 : 0;
    leading += is_space && leading == count ? 1 : 0;
  }
  return {leading, trailing};
}

}  // namespace

Encoded PostProcessor::sample(Ids text, std::optional<Ids> second, std::int64_t max_tokens) const {
  const auto& parts = second ? pair : single;
  const auto special = special_tokens(parts);
  TRIREME_REQUIRE(max_tokens >= special, "a sample of at most {} has no place for the {} around its text; allow more",
                  text::quantity(max_tokens, "token"), text::quantity(special, "special token"));
  std::array<Ids, 2> texts{std::move(text), std::move(second).value_or(Ids{})};
  const auto [first_size, second_size] =
      longest_first(texts[0].size(), texts[1].size(), static_cast<std::size_t>(max_tokens - special));
  texts[0].resize(first_size);
  texts[1].resize(second_size);
  Encoded out;
  for (const auto& part : parts) {
    const auto& ids = part.text ? texts.at(static_cast<std::size_t>(*part.text)) : part.ids;
    out.ids.insert(out.ids.end(), ids.begin(), ids.end());
    out.types.resize(out.ids.size(), part.type);
  }
  return out;
}

std::vector<Token> PostProcessor::around(const std::vector<std::vector<Token>>& texts, bool special) const {
  std::vector<Token> out;
  for (const auto& part : texts.size() > 1 ? pair : single) {
    if (part.text) {
      const auto& tokens = texts.at(static_cast<std::size_t>(*part.text));
      out.insert(out.end(), tokens.begin(), tokens.end());
    } else if (special) {
      for (const auto id : part.ids) out.push_back({.id = id});
    }
  }
  return out;
}

Range PostProcessor::trimmed(Range bytes, std::string_view token, bool is_first, std::string_view text) const {
  if (!trims) return bytes;
  auto [leading, trailing] = spaces_around(token);
  if (leading == 1 && keeps_first_space && (is_first || bytes.begin == 0)) leading = 0;
  for (; leading > 0 && bytes.begin < bytes.end; --leading) next_char(text, bytes.begin);
  for (; trailing > 0 && bytes.begin < bytes.end; --trailing) U8_BACK_1_UNSAFE(text.data(), bytes.end);
  return bytes;
}

Ids PostProcessor::prompt(const Ids& text) const {
  Ids out;
  for (const auto& part : single) {
    const auto& ids = part.text ? text : part.ids;
    out.insert(out.end(), ids.begin(), ids.end());
    if (part.text) break;
  }
  return out;
}

}  // namespace trireme::tokenizers
