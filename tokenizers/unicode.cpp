#include "tokenizers/unicode.h"

#include <fmt/format.h>
#include <unicode/normalizer2.h>
#include <unicode/uchar.h>
#include <unicode/unistr.h>
#include <unicode/ustring.h>
#include <unicode/utf8.h>

#include <algorithm>
#include <array>

#include "core/base/error.h"
#include "core/base/text.h"

namespace trireme::tokenizers {
namespace {

UChar32 code_point(char32_t c) { return static_cast<UChar32>(c); }

const icu::Normalizer2& normalizer(NormalForm form) {
  const bool compatible = form == NormalForm::nfkc || form == NormalForm::nfkd;
  const bool composed = form == NormalForm::nfc || form == NormalForm::nfkc;
  UErrorCode status = U_ZERO_ERROR;
  const auto* found = icu::Normalizer2::getInstance(nullptr, compatible ? "nfkc" : "nfc",
                                                    composed ? UNORM2_COMPOSE : UNORM2_DECOMPOSE, status);
  TRIREME_CHECK(U_SUCCESS(status) && found != nullptr, "ICU has no normal forms: {}", u_errorName(status));
  return *found;
}

struct BreakClass {
  int kind;         ///< UGraphemeClusterBreak
  bool is_picture;  ///< Extended_Pictographic
};
BreakClass break_class(char32_t c) {
  return {u_getIntPropertyValue(code_point(c), UCHAR_GRAPHEME_CLUSTER_BREAK),
          u_hasBinaryProperty(code_point(c), UCHAR_EXTENDED_PICTOGRAPHIC) != 0};
}

/// The rules of UAX 29 for two neighbours: GB3 to GB9b.
bool joins(int left, int right) {
  const auto is_end = [](int kind) { return kind == U_GCB_CONTROL || kind == U_GCB_CR || kind == U_GCB_LF; };
  if (left == U_GCB_CR && right == U_GCB_LF) return true;
  if (is_end(left) || is_end(right)) return false;
  if (left == U_GCB_L && (right == U_GCB_L || right == U_GCB_V || right == U_GCB_LV || right == U_GCB_LVT)) return true;
  if ((left == U_GCB_LV || left == U_GCB_V) && (right == U_GCB_V || right == U_GCB_T)) return true;
  if ((left == U_GCB_LVT || left == U_GCB_T) && right == U_GCB_T) return true;
  return right == U_GCB_EXTEND || right == U_GCB_ZWJ || right == U_GCB_SPACING_MARK || left == U_GCB_PREPEND;
}

}  // namespace

std::optional<std::size_t> invalid_byte(std::string_view text) {
  const auto valid = text::utf8_prefix(text);
  return valid == text.size() ? std::nullopt : std::optional(valid);
}

std::string repaired(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  const auto size = static_cast<std::int64_t>(text.size());
  for (std::int64_t at = 0; at < size;) {
    UChar32 c = 0;
    U8_NEXT_OR_FFFD(text.data(), at, size, c);
    append_char(out, static_cast<char32_t>(c));
  }
  return out;
}

char32_t next_char(std::string_view text, std::size_t& at) {
  UChar32 c = 0;
  U8_NEXT_UNSAFE(text.data(), at, c);
  return static_cast<char32_t>(c);
}

void append_char(std::string& text, char32_t c) {
  std::array<char, U8_MAX_LENGTH> bytes{};
  std::size_t size = 0;
  U8_APPEND_UNSAFE(bytes.data(), size, code_point(c));
  text.append(bytes.data(), size);
}

std::size_t count_chars(std::string_view text) { return text::width(text); }

std::size_t cluster_end(std::string_view text, std::size_t at) {
  auto left = break_class(next_char(text, at));
  bool picture = left.is_picture;  // the cluster is one, and what extends it
  std::size_t flags = left.kind == U_GCB_REGIONAL_INDICATOR ? 1 : 0;
  while (at < text.size()) {
    auto after = at;
    const auto right = break_class(next_char(text, after));
    const bool joined_picture = picture && left.kind == U_GCB_ZWJ && right.is_picture;
    const bool pair_of_flags = right.kind == U_GCB_REGIONAL_INDICATOR && flags % 2 == 1;
    if (!joins(left.kind, right.kind) && !joined_picture && !pair_of_flags) break;
    picture = joined_picture || (picture && (right.kind == U_GCB_EXTEND || right.kind == U_GCB_ZWJ));
    flags = right.kind == U_GCB_REGIONAL_INDICATOR ? flags + 1 : 0;
    left = right;
    at = after;
  }
  return at;
}

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return U8_IS_SINGLE(c); });
}

bool is_white_space(char32_t c) { return u_isUWhiteSpace(code_point(c)) != 0; }

bool is_punctuation(char32_t c) {
  if (c < 0x80) return c > ' ' && c < 0x7F && u_isalnum(code_point(c)) == 0;
  return u_ispunct(code_point(c)) != 0;
}

bool is_control(char32_t c) {
  return (U_GET_GC_MASK(code_point(c)) & (U_GC_CC_MASK | U_GC_CF_MASK | U_GC_CO_MASK)) != 0;
}

bool is_nonspacing_mark(char32_t c) { return u_charType(code_point(c)) == U_NON_SPACING_MARK; }

bool is_mark(char32_t c) { return (U_GET_GC_MASK(code_point(c)) & U_GC_M_MASK) != 0; }

bool is_number(char32_t c) { return (U_GET_GC_MASK(code_point(c)) & U_GC_N_MASK) != 0; }

bool is_word_char(char32_t c) {
  return u_isUAlphabetic(code_point(c)) != 0 || u_hasBinaryProperty(code_point(c), UCHAR_JOIN_CONTROL) != 0 ||
         (U_GET_GC_MASK(code_point(c)) & (U_GC_M_MASK | U_GC_ND_MASK | U_GC_PC_MASK)) != 0;
}

bool is_ideograph(char32_t c) {
  struct Block {
    char32_t first, last;
  };
  static constexpr std::array<Block, 8> kBlocks{{{0x3400, 0x4DBF},
                                                 {0x4E00, 0x9FFF},
                                                 {0xF900, 0xFAFF},
                                                 {0x20000, 0x2A6DF},
                                                 {0x2A700, 0x2B73F},
                                                 {0x2B740, 0x2B81F},
                                                 {0x2B920, 0x2CEAF},
                                                 {0x2F800, 0x2FA1F}}};
  return c >= kBlocks[0].first &&
         std::any_of(kBlocks.begin(), kBlocks.end(), [&](Block b) { return c >= b.first && c <= b.last; });
}

void append_lowercase(std::string& text, char32_t c) {
  if (c < 0x80) {
    text += static_cast<char>(c >= 'A' && c <= 'Z' ? c + ('a' - 'A') : c);
    return;
  }
  // The function for strings, given one character: that for characters cannot return two (U+0130 has i and a dot).
  icu::UnicodeString one(code_point(c));
  std::array<UChar, 8> lower{};
  UErrorCode status = U_ZERO_ERROR;
  const auto size =
      u_strToLower(lower.data(), static_cast<std::int32_t>(lower.size()), one.getBuffer(), one.length(), "", &status);
  TRIREME_CHECK(U_SUCCESS(status), "no lowercase of U+{:04X}: {}", static_cast<std::uint32_t>(c), u_errorName(status));
  icu::UnicodeString(false, lower.data(), size).toUTF8String(text);
}

std::string normal_form(std::string_view text, NormalForm form) {
  if (is_ascii(text)) return std::string(text);
  UErrorCode status = U_ZERO_ERROR;
  const auto wide = icu::UnicodeString::fromUTF8({text.data(), static_cast<std::int32_t>(text.size())});
  const auto normal = normalizer(form).normalize(wide, status);
  std::string out;
  if (U_SUCCESS(status) && !normal.isBogus()) normal.toUTF8String(out);
  if (U_FAILURE(status) || normal.isBogus() || out.size() > kMostText)
    throw DataError(fmt::format("a text of {} is too long for its normal form; split it",
                                text::bytes(static_cast<double>(text.size()))));
  return out;
}

}  // namespace trireme::tokenizers
