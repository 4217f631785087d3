// Cuts the source of a template into tokens.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <system_error>
#include <utility>

#include "tokenizers/jinja/strings.h"
#include "tokenizers/jinja/tokens.h"
#include "tokenizers/unicode.h"

namespace trireme::jinja {
namespace {

constexpr std::size_t kLongestName = 1000;  // bytes

/// Line ends become \n, and one at the end goes.
std::string with_plain_lines(std::string_view source) {
  auto out = replace(replace(source, "\r\n", "\n"), "\r", "\n");
  if (out.ends_with('\n')) out.pop_back();
  return out;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(with_plain_lines(source)) {}

  std::vector<Token> run() {
    try {
      while (at_ < source_.size()) add_text();
    } catch (const Problem& problem) {
      throw Problem(fmt::format("line {}: {}", line_, problem.what()));
    }
    add(TokenKind::end, at_);
    return std::move(tokens_);
  }

 private:
  [[nodiscard]] std::string_view rest() const { return std::string_view(source_).substr(at_); }
  [[nodiscard]] char char_at(std::size_t at) const { return at < source_.size() ? source_[at] : '\0'; }
  /// The + or - at a byte, or 0.
  [[nodiscard]] char sign_at(std::size_t at) const {
    return char_at(at) == '-' || char_at(at) == '+' ? char_at(at) : '\0';
  }

  void skip_to(std::size_t at) {
    const auto begin = source_.begin();
    line_ += static_cast<std::size_t>(
        std::count(begin + static_cast<std::ptrdiff_t>(at_), begin + static_cast<std::ptrdiff_t>(at), '\n'));
    at_ = at;
  }

  void skip_space() { skip_to(source_.size() - strip(rest(), {}, true, false).size()); }

  /// The token from here to byte `end`.
  void add(TokenKind kind, std::size_t end, Value value = {}) {
    tokens_.push_back({kind, line_, source_.substr(at_, end - at_), std::move(value)});
    skip_to(end);
  }

  // Text between tags -------------------------------------------------------------------------------------------------

  /// The text up to the next tag, and that tag.
  void add_text() {
    auto end = at_;
    while (end < source_.size() && !is_tag_begin(end)) ++end;
    const auto text = rest().substr(0, end - at_);
    const auto sign = sign_at(end + 2);
    const auto kept = end == source_.size() ? text : stripped(text, sign, char_at(end + 1) == '{');
    if (!kept.empty()) tokens_.push_back({TokenKind::text, line_, std::string(kept), {}});
    skip_to(end);
    if (end == source_.size()) return;
    if (source_[end + 1] == '#') return skip_comment();
    const std::string_view close = source_[end + 1] == '{' ? "}}" : "%}";
    add(TokenKind::symbol, end + 2);
    if (sign != '\0') skip_to(at_ + 1);
    add_tag(close);
  }

  [[nodiscard]] bool is_tag_begin(std::size_t at) const {
    return source_[at] == '{' && (char_at(at + 1) == '{' || char_at(at + 1) == '%' || char_at(at + 1) == '#');
  }

  /// `text` as the sign of the tag behind it leaves it.
  [[nodiscard]] std::string_view stripped(std::string_view text, char sign, bool is_output) const {
    if (sign == '-') return strip(text, {}, false, true);
    if (sign == '+' || is_output) return text;
    const auto newline = text.rfind('\n');
    const auto begin = newline == text.npos ? 0 : newline + 1;
    const bool is_line_begin = begin > 0 || at_ == 0 || source_[at_ - 1] == '\n';
    return is_line_begin && strip(text.substr(begin), {}, true, false).empty() ? text.substr(0, begin) : text;
  }

  void skip_comment() {
    const auto end = source_.find("#}", at_ + 2);
    if (end == source_.npos) throw Problem("a comment has no end: {#");
    skip_to(end - (end > at_ + 2 && sign_at(end - 1) != '\0' ? 1 : 0));
    skip_end("#}");
  }

  /// Skips the end of a tag with its sign and what the sign strips; whether there was one.
  bool skip_end(std::string_view end) {
    const bool is_output = end == "}}";
    const char sign = is_output && char_at(at_) == '+' ? '\0' : sign_at(at_);
    if (!rest().substr(sign != '\0' ? 1 : 0).starts_with(end)) return false;
    skip_to(at_ + end.size() + (sign != '\0' ? 1 : 0));
    if (sign == '-') skip_space();
    if (sign == '\0' && !is_output && char_at(at_) == '\n') skip_to(at_ + 1);
    return true;
  }

  // Tags --------------------------------------------------------------------------------------------------------------

  void add_tag(std::string_view close) {
    int open_brackets = 0;
    for (skip_space(); at_ < source_.size(); skip_space()) {
      const auto line = line_;
      if (open_brackets == 0 && skip_end(close)) {
        tokens_.push_back({TokenKind::symbol, line, std::string(close), {}});
        return;
      }
      const char c = source_[at_];
      if (c >= '0' && c <= '9') {
        add_number();
      } else if (c == '"' || c == '\'') {
        add_string(c);
      } else if (const auto end = name_end(); end > at_) {
        if (end - at_ > kLongestName) throw Problem(fmt::format("a name has more than {} bytes", kLongestName));
        add(TokenKind::name, end);
      } else {
        open_brackets += c == '(' || c == '[' || c == '{' ? 1 : 0;
        open_brackets -= (c == ')' || c == ']' || c == '}') && open_brackets > 0 ? 1 : 0;
        add_symbol();
      }
    }
    throw Problem(fmt::format("a tag has no end: {}", close));
  }

  [[nodiscard]] std::size_t name_end() const {
    auto end = at_;
    for (auto next = end; next < source_.size(); end = next)
      if (!tokenizers::is_word_char(tokenizers::next_char(source_, next))) break;
    return end;
  }

  void add_symbol() {
    static constexpr std::array<std::string_view, 6> kLong{"//", "**", "==", "!=", ">=", "<="};
    static constexpr std::string_view kShort = "+-/*%~[](){}><=.:|,";
    const bool is_long =
        std::any_of(kLong.begin(), kLong.end(), [&](auto symbol) { return rest().starts_with(symbol); });
    if (!is_long && kShort.find(source_[at_]) == kShort.npos)
      throw Problem(fmt::format("unexpected character {}", quoted_text(chars_of(rest().substr(0, 4)).front())));
    add(TokenKind::symbol, at_ + (is_long ? 2 : 1));
  }

  void add_number() {
    const char *first = source_.data() + at_, *last = source_.data() + source_.size();
    std::int64_t whole = 0;
    double number = 0;
    const auto whole_end = std::from_chars(first, last, whole), number_end = std::from_chars(first, last, number);
    const bool is_float = number_end.ptr > whole_end.ptr && number_end.ptr[-1] != '.';
    const auto& end = is_float ? number_end : whole_end;
    if (end.ec != std::errc()) throw Problem("a number is too large");
    add(TokenKind::literal, static_cast<std::size_t>(end.ptr - source_.data()),
        is_float ? Value(number) : Value(whole));
  }

  void add_string(char quote) {
    static constexpr std::string_view kLetters = "nrtabfv\\'\"", kMeanings = "\n\r\t\a\b\f\v\\'\"";
    const auto* before = tokens_.back().value.text();  // strings behind each other are one
    std::string out = before != nullptr ? *before : "";
    context_.spend(out.size() / kBytesPerStep);
    if (before != nullptr) tokens_.pop_back();
    auto at = at_ + 1;
    for (; at < source_.size() && source_[at] != quote; ++at) {
      const bool is_escape = source_[at] == '\\';
      const auto known = is_escape ? kLetters.find(char_at(++at)) : kLetters.npos;
      if (is_escape && known == kLetters.npos) throw Problem("an escape of a string is not supported");
      out += is_escape ? kMeanings[known] : source_[at];
    }
    if (at >= source_.size()) throw Problem("a string has no end");
    add(TokenKind::literal, at + 1, Value::text(out));
  }

  std::string source_;
  std::size_t at_ = 0, line_ = 1;
  std::vector<Token> tokens_;
  Context context_;  ///< limits the time
};
}  // namespace

std::vector<Token> tokens_of(std::string_view source) { return Lexer(source).run(); }

}  // namespace trireme::jinja
