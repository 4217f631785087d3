#include "tokenizers/jinja/strings.h"

#include <fmt/format.h>
#include <unicode/locid.h>
#include <unicode/uchar.h>
#include <unicode/unistr.h>

#include <array>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstring>

#include "tokenizers/jinja/value.h"
#include "tokenizers/unicode.h"

namespace trireme::jinja {
namespace {

using tokenizers::next_char;

/// A text as a function of ICU makes it.
template <class Change>
std::string changed(std::string_view text, Change change) {
  std::string out;
  auto wide = icu::UnicodeString::fromUTF8({text.data(), static_cast<std::int32_t>(text.size())});
  return change(wide).toUTF8String(out);
}

/// str.isspace(), which is also \s of Python's regular expressions.
bool is_space(char32_t c) { return tokenizers::is_white_space(c) || (c >= 0x1C && c <= 0x1F); }

bool is_printable(char32_t c) {
  return c == ' ' || (U_GET_GC_MASK(static_cast<UChar32>(c)) & (U_GC_C_MASK | U_GC_Z_MASK)) == 0;
}

/// The last character before byte `end`.
std::size_t previous_char(std::string_view text, std::size_t end) {
  do --end;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80);
  return end;
}

/// Where the first white space is, or the end.
std::size_t find_space(std::string_view text) {
  std::size_t at = 0, next = 0;
  while (at < text.size() && !is_space(next_char(text, next))) at = next;
  return at;
}

}  // namespace

std::string_view strip(std::string_view text, std::optional<std::string_view> chars, bool at_begin, bool at_end) {
  const auto is_stripped = [&](std::string_view c, std::size_t at = 0) {
    return chars ? chars->find(c) != chars->npos : is_space(next_char(c, at));
  };
  while (at_begin && !text.empty()) {
    std::size_t end = 0;
    next_char(text, end);
    if (!is_stripped(text.substr(0, end))) break;
    text.remove_prefix(end);
  }
  while (at_end && !text.empty()) {
    const auto begin = previous_char(text, text.size());
    if (!is_stripped(text.substr(begin))) break;
    text = text.substr(0, begin);
  }
  return text;
}

std::vector<std::string_view> chars_of(std::string_view text) {
  std::vector<std::string_view> out;
  for (std::size_t at = 0; at < text.size();) {
    const auto begin = at;
    next_char(text, at);
    out.push_back(text.substr(begin, at - begin));
  }
  return out;
}

std::vector<std::string_view> split(std::string_view text, std::optional<std::string_view> separator,
                                    std::int64_t most) {
  if (separator && separator->empty()) throw Problem("the separator of split is empty");
  std::vector<std::string_view> out;
  if (!separator) text = strip(text, {}, true, false);
  while (static_cast<std::int64_t>(out.size()) != most) {
    const auto end = separator ? find_part(text, *separator) : find_space(text);
    if (end >= text.size()) break;
    out.push_back(text.substr(0, end));
    text.remove_prefix(end + (separator ? separator->size() : 0));
    if (!separator) text = strip(text, {}, true, false);
  }
  if (separator || !text.empty()) out.push_back(text);
  return out;
}

std::size_t find_part(std::string_view text, std::string_view part) {
  const auto* found = static_cast<const char*>(memmem(text.data(), text.size(), part.data(), part.size()));
  return found != nullptr ? static_cast<std::size_t>(found - text.data()) : text.npos;
}

std::string replace(std::string_view text, std::string_view from, std::string_view to) {
  if (from.empty()) throw Problem("replace of an empty text is not supported");
  std::string out;
  for (auto found = find_part(text, from); found != text.npos; found = find_part(text, from)) {
    append(out, text.substr(0, found));
    append(out, to);
    text.remove_prefix(found + from.size());
  }
  append(out, text);
  return out;
}

std::string escape(std::string_view text) {
  static constexpr std::string_view kSpecial = "&<>'\"";
  static constexpr std::array<std::string_view, 5> kEntities{"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
  std::string out;
  for (const char c : text) {
    const auto special = kSpecial.find(c);
    append(out, special != kSpecial.npos ? kEntities[special] : std::string_view(&c, 1));
  }
  return out;
}

std::string upper(std::string_view text) {
  return changed(text, [](auto& wide) { return wide.toUpper(icu::Locale::getRoot()); });
}
std::string lower(std::string_view text) {
  return changed(text, [](auto& wide) { return wide.toLower(icu::Locale::getRoot()); });
}

std::string capitalize(std::string_view text) {
  if (text.empty()) return "";
  std::size_t at = 0;
  next_char(text, at);
  const auto to_title = [](auto& wide) { return wide.toTitle(nullptr, icu::Locale::getRoot()); };
  return changed(text.substr(0, at), to_title) + lower(text.substr(at));
}

std::string title(std::string_view text) {
  std::string out;
  bool is_behind_letter = false;
  for (const auto c : chars_of(text)) {
    std::size_t at = 0;
    out += is_behind_letter ? lower(c) : capitalize(c);
    is_behind_letter = u_hasBinaryProperty(static_cast<UChar32>(next_char(c, at)), UCHAR_CASED) != 0;
  }
  return out;
}

std::string quoted_text(std::string_view text) {
  const bool has_only_single = text.find('\'') != text.npos && text.find('"') == text.npos;
  const char quote = has_only_single ? '"' : '\'';
  std::string out(1, quote);
  for (std::size_t at = 0; at < text.size();) {
    const auto begin = at;
    const auto code = next_char(text, at);
    const auto c = text.substr(begin, at - begin);
    const auto number = static_cast<std::uint32_t>(code);
    if (c[0] == quote || c == "\\")
      append(out, "\\" + std::string(c));
    else if (c == "\n" || c == "\r" || c == "\t")
      append(out, c == "\n" ? "\\n" : c == "\r" ? "\\r" : "\\t");
    else if (is_printable(code))
      append(out, c);
    else
      append(out, number < 0x100     ? fmt::format("\\x{:02x}", number)
                  : number < 0x10000 ? fmt::format("\\u{:04x}", number)
                                     : fmt::format("\\U{:08x}", number));
  }
  return out + quote;
}

std::string float_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  std::array<char, 40> buffer{};
  const auto magnitude = std::fabs(value);
  const bool is_plain = magnitude == 0 || (magnitude >= 1e-4 && magnitude < 1e16);
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value,
                                 is_plain ? std::chars_format::fixed : std::chars_format::scientific);
  std::string out(buffer.data(), end.ptr);
  if (is_plain && out.find('.') == out.npos) out += ".0";
  return out;
}

}  // namespace trireme::jinja
