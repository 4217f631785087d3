#include "tokenizers/pattern.h"

#include <fmt/format.h>
#include <unicode/regex.h>
#include <unicode/unistr.h>
#include <unicode/uscript.h>
#include <unicode/utf16.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>

#include "core/base/error.h"
#include "tokenizers/unicode.h"
#include "tokenizers/unicode_tables.h"

namespace trireme::tokenizers {
namespace {

constexpr std::int32_t kMostSteps = 10'000;         // ICU's unit: about a millisecond of work for one match
constexpr std::size_t kLongestExpression = 10'000;  // bytes

/// An ICU set of the code points whose classes are in it; of the others if it is negated.
std::string set_of(bool negated, const std::function<bool(const CharClass&)>& is_in) {
  std::string out = negated ? "[^" : "[";
  std::uint32_t at = 0;
  for (const auto run : class_runs()) {
    if (is_in(char_classes()[run.index])) out += fmt::format("\\x{{{:X}}}-\\x{{{:X}}}", at, at + run.length - 1);
    at += run.length;
  }
  return out + "]";
}

std::string set_of(bool negated, CharFlag flag) {
  return set_of(negated, [flag](const CharClass& c) { return (c.flags & flag) != 0; });
}

/// The set that \p{..} means, `name` between the braces; \P{..} if it is negated. Properties other than general
/// categories and Han are ICU's.
std::string property_set(bool negated, const std::string& name) {
  if (name.starts_with('^')) return property_set(!negated, name.substr(1));
  if (u_getPropertyValueEnum(UCHAR_SCRIPT, name.c_str()) == USCRIPT_HAN) return set_of(negated, kIsHan);
  const auto mask = u_getPropertyValueEnum(UCHAR_GENERAL_CATEGORY_MASK, name.c_str());
  if (mask == UCHAR_INVALID_CODE) return fmt::format("\\{}{{{}}}", negated ? 'P' : 'p', name);
  return set_of(negated, [mask = static_cast<std::uint32_t>(mask)](const CharClass& c) {
    return (U_MASK(c.category) & mask) != 0;
  });
}

/// ICU's form of the escape that `rest` begins with, such as \s or \p{L}, whose length is set; or nothing if it is not
/// supported.
std::optional<std::string> icu_escape(std::string_view rest, std::size_t& length) {
  const char letter = rest.size() > 1 ? rest[1] : '\0';
  length = 2;
  if (letter == 's' || letter == 'S') return set_of(letter == 'S', kIsWhiteSpace);
  if (letter == 'd' || letter == 'D') return property_set(letter == 'D', "Nd");
  if (letter == 'p' || letter == 'P') {
    const auto end = rest.find('}');
    if (end == rest.npos || rest[2] != '{') return std::nullopt;
    length = end + 1;
    return property_set(letter == 'P', std::string(rest.substr(3, end - 3)));
  }
  const std::string_view same = "rntfAz";
  const bool is_symbol =
      letter > ' ' && letter < 0x7F && std::string_view("_<>`'").find(letter) == std::string_view::npos &&
      !((letter >= '0' && letter <= '9') || (letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z'));
  if (is_symbol || same.find(letter) != std::string_view::npos) return std::string{'\\', letter};
  return std::nullopt;
}

/// Translates an expression. @throws PartError with what is not supported
icu::UnicodeString to_icu(const std::string& expression) {
  if (expression.empty() || expression.size() > kLongestExpression)
    throw PartError(
        fmt::format("an expression has 1 to {} bytes, and this one {}", kLongestExpression, expression.size()));
  std::string out;
  int depth = 0;            // of brackets: [a[bc]]
  bool is_counted = false;  // behind a quantifier such as {1,3}
  const auto refuse = [](std::string_view what, std::size_t at) {
    throw PartError(fmt::format("{} at byte {} of the expression is not supported", what, at));
  };
  for (std::size_t at = 0; at < expression.size(); ++at) {
    const char c = expression[at];
    if (c == '\\') {
      std::size_t length = 0;
      const auto escape = icu_escape(std::string_view(expression).substr(at), length);
      if (!escape) refuse("this escape", at);
      out += *escape;
      at += length - 1;
      is_counted = false;
      continue;
    }
    const bool is_outside = depth == 0;
    // These depend on where lines end, or on the engine.
    if (is_outside && (c == '.' || c == '^' || c == '$')) refuse(std::string_view(&c, 1), at);
    if (c == '+' && is_counted) refuse("+ behind a counted repetition", at);
    is_counted = is_outside && c == '}';
    if (c == '[') ++depth;
    if (c == ']' && depth > 0) --depth;
    out += c;
  }
  return icu::UnicodeString::fromUTF8(out);
}

/// Moves along a text in UTF-16 and in UTF-8 at once.
class Cursor {
 public:
  explicit Cursor(const icu::UnicodeString& text) : text_(text) {}
  /// The byte of the UTF-8 text at a place of the UTF-16 text; places never decrease.
  std::size_t byte_of(std::int32_t place) {
    for (; at_ < place; ++at_) {
      const auto unit = text_.charAt(at_);
      bytes_ += U16_IS_SURROGATE(unit) ? 2 : unit < 0x80 ? 1 : unit < 0x800 ? 2 : 3;
    }
    return bytes_;
  }

 private:
  const icu::UnicodeString& text_;
  std::int32_t at_ = 0;
  std::size_t bytes_ = 0;
};

std::vector<Range> find_literal(std::string_view text, const std::string& literal) {
  std::vector<Range> out;
  for (auto at = text.find(literal); at != text.npos; at = text.find(literal, at + literal.size()))
    out.push_back({at, at + literal.size()});
  return out;
}

std::vector<Range> find_longest(std::string_view text, const PrefixTree& literals) {
  std::vector<Range> out;
  for (std::size_t at = 0; at < text.size();) {
    std::size_t longest = 0;
    literals.prefixes(text.substr(at), [&](std::size_t length, std::int32_t) { longest = length; });
    if (longest > 0) out.push_back({at, at + longest});
    at += std::max<std::size_t>(longest, 1);
  }
  return out;
}

std::vector<Range> find_chars(std::string_view text, bool (*is_in)(char32_t c)) {
  std::vector<Range> out;
  for (std::size_t at = 0; at < text.size();) {
    const auto begin = at;
    if (is_in(next_char(text, at))) out.push_back({begin, at});
  }
  return out;
}

}  // namespace

struct Pattern::Expression {
  std::unique_ptr<icu::RegexPattern> compiled;
};

Pattern Pattern::of_literal(std::string literal) {
  TRIREME_CHECK(!literal.empty(), "an empty literal matches everywhere");
  Pattern out;
  out.literal_ = std::move(literal);
  return out;
}

Pattern Pattern::of_literals(const std::vector<std::string>& literals) {
  std::vector<std::pair<std::string_view, std::int32_t>> numbered;
  for (const auto& literal : literals) numbered.emplace_back(literal, 0);
  Pattern out;
  out.literals_ = std::make_shared<const PrefixTree>(std::move(numbered));
  return out;
}

Pattern Pattern::of_chars(bool (*is_in)(char32_t c)) {
  Pattern out;
  out.is_in_ = is_in;
  return out;
}

Pattern Pattern::of_expression(const std::string& expression) {
  UErrorCode status = U_ZERO_ERROR;
  UParseError place{};
  std::unique_ptr<icu::RegexPattern> compiled(icu::RegexPattern::compile(to_icu(expression), 0, place, status));
  if (U_FAILURE(status) || !compiled)
    throw PartError(fmt::format("the expression {} is not valid: {}", expression, u_errorName(status)));
  Pattern out;
  out.literal_ = expression;
  out.expression_ = std::make_shared<const Expression>(Expression{std::move(compiled)});
  return out;
}

std::vector<Range> Pattern::find(std::string_view text) const {
  if (literals_) return find_longest(text, *literals_);
  if (is_in_ != nullptr) return find_chars(text, is_in_);
  if (!expression_) return find_literal(text, literal_);
  UErrorCode status = U_ZERO_ERROR;
  const auto wide = icu::UnicodeString::fromUTF8({text.data(), static_cast<std::int32_t>(text.size())});
  const std::unique_ptr<icu::RegexMatcher> matcher(expression_->compiled->matcher(wide, status));
  if (U_SUCCESS(status)) matcher->setTimeLimit(kMostSteps, status);
  std::vector<Range> out;
  Cursor cursor(wide);
  while (U_SUCCESS(status) && matcher->find(status)) {
    const auto begin = cursor.byte_of(matcher->start(status)), end = cursor.byte_of(matcher->end(status));
    const bool is_next_to_last = begin == end && !out.empty() && out.back().end == begin;
    if (!is_next_to_last) out.push_back({begin, end});
    // The limit would hold for all matches together. An empty match would be found again.
    if (begin != end) matcher->reset(matcher->end64(status), status);
  }
  if (U_FAILURE(status))
    throw DataError(fmt::format("the tokenizer's expression {} fails on a text of {} bytes: {}", literal_, text.size(),
                                u_errorName(status)));
  return out;
}

}  // namespace trireme::tokenizers
