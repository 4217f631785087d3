#include "tokenizers/unicode.h"

#include <unicode/utf8.h>

#include <algorithm>
#include <array>
#include <vector>

#include "core/base/text.h"
#include "tokenizers/unicode_tables.h"

namespace trireme::tokenizers {
namespace {

constexpr char32_t kNonJoiner = 0x200C;

UChar32 code_point(char32_t c) { return static_cast<UChar32>(c); }

const CharClass& class_of(char32_t c) {
  static const std::vector<std::uint8_t> indices = [] {
    std::vector<std::uint8_t> out;
    for (const auto run : class_runs()) out.insert(out.end(), run.length, static_cast<std::uint8_t>(run.index));
    return out;
  }();
  return char_classes()[indices[c]];
}

bool has(char32_t c, CharFlag flag) { return (class_of(c).flags & flag) != 0; }

/// Its UGraphemeClusterBreak.
int cluster_break(char32_t c) {
  constexpr char32_t kFirstSyllable = 0xAC00, kTrailing = 28;  // of Hangul
  const auto kind = class_of(c).cluster;
  return kind == U_GCB_LV && (c - kFirstSyllable) % kTrailing != 0 ? U_GCB_LVT : kind;
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
  if (c < 0x80) {
    text += static_cast<char>(c);
    return;
  }
  std::array<char, U8_MAX_LENGTH> bytes{};
  std::size_t size = 0;
  U8_APPEND_UNSAFE(bytes.data(), size, code_point(c));
  text.append(bytes.data(), size);
}

std::size_t count_chars(std::string_view text) { return text::width(text); }

std::vector<std::size_t> chars_before(std::string_view text) {
  std::vector<std::size_t> out{0};
  for (const char byte : text) out.push_back(out.back() + (U8_IS_TRAIL(byte) ? 0 : 1));
  return out;
}

std::size_t cluster_end(std::string_view text, std::size_t at) {
  enum class Conjunct : std::uint8_t { none, consonant, linked };  // Indic consonants: GB9c
  char32_t left = next_char(text, at);
  bool picture = has(left, kIsPicture);  // the cluster is one, and what extends it
  std::size_t flags = cluster_break(left) == U_GCB_REGIONAL_INDICATOR ? 1 : 0;
  auto conjunct = has(left, kIsConsonant) ? Conjunct::consonant : Conjunct::none;
  while (at < text.size()) {
    auto after = at;
    const auto right = next_char(text, after);
    const auto left_kind = cluster_break(left), kind = cluster_break(right);
    const bool joined_picture = picture && left_kind == U_GCB_ZWJ && has(right, kIsPicture);
    const bool pair_of_flags = kind == U_GCB_REGIONAL_INDICATOR && flags % 2 == 1;
    const bool joined_consonant = conjunct == Conjunct::linked && has(right, kIsConsonant);
    if (!joins(left_kind, kind) && !joined_picture && !pair_of_flags && !joined_consonant) break;
    const bool extends = kind == U_GCB_EXTEND || kind == U_GCB_ZWJ;
    picture = joined_picture || (picture && extends);
    flags = kind == U_GCB_REGIONAL_INDICATOR ? flags + 1 : 0;
    if (has(right, kIsConsonant))
      conjunct = Conjunct::consonant;
    else if (conjunct != Conjunct::none && has(right, kIsLinker))
      conjunct = Conjunct::linked;
    else if (!extends || right == kNonJoiner)
      conjunct = Conjunct::none;
    left = right;
    at = after;
  }
  return at;
}

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return U8_IS_SINGLE(c); });
}

bool is_white_space(char32_t c) { return has(c, kIsWhiteSpace); }
bool is_punctuation(char32_t c) { return has(c, kIsPunctuation); }
bool is_control(char32_t c) { return has(c, kIsControl); }
bool is_nonspacing_mark(char32_t c) { return has(c, kIsNonspacing); }
bool is_mark(char32_t c) { return has(c, kIsMark); }
bool is_number(char32_t c) { return has(c, kIsNumber); }
bool is_word_char(char32_t c) { return has(c, kIsWord); }

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

char32_t lowercase(char32_t c) {
  if (c < 0x80) return c >= 'A' && c <= 'Z' ? c + ('a' - 'A') : c;
  const auto runs = lowercase_runs();
  const auto run = std::lower_bound(runs.begin(), runs.end(), c,
                                    [](const LowercaseRun& r, char32_t wanted) { return r.last < wanted; });
  const bool is_in = run != runs.end() && c >= run->first && (c - run->first) % run->step == 0;
  return is_in ? c + static_cast<char32_t>(run->added) : c;
}

}  // namespace trireme::tokenizers
