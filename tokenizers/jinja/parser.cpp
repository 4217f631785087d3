// The parser of templates, function by function of Jinja's, and its tokens. Blocks are trimmed as transformers has it:
// a newline behind a block or a comment goes, and so does white space before it on its line.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <initializer_list>
#include <system_error>
#include <utility>

#include "tokenizers/jinja/strings.h"
#include "tokenizers/jinja/syntax.h"
#include "tokenizers/unicode.h"

namespace trireme::jinja {
namespace {

constexpr std::size_t kDeepestTree = 200;
constexpr std::size_t kLongestName = 1000;  // bytes

using Tree = std::unique_ptr<Node>;
using Kind = NodeKind;
using Words = std::initializer_list<std::string_view>;

enum class TokenKind : std::uint8_t { text, name, literal, symbol, end };

/// The brackets of tags are symbols too: "{{", "}}", "{%" and "%}".
struct Token {
  TokenKind kind;
  std::size_t line;
  std::string text;
  Value value;  ///< of a literal
};

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

class Parser {
 public:
  explicit Parser(std::string_view source) : tokens_(Lexer(source).run()) {}

  Tree run() {
    try {
      auto out = block({});
      out->has_generation = has_generation_;
      return out;
    } catch (const Problem& problem) {
      throw Problem(fmt::format("line {}: {}", token().line, problem.what()));
    }
  }

 private:
  [[noreturn]] void fail(const std::string& what) const { throw Problem(what); }
  [[noreturn]] void fail_expected(std::string_view what) const {
    const bool is_end = token().kind == TokenKind::end;
    fail(fmt::format("expected {} and found {}", what, is_end ? "the end of the template" : "'" + token().text + "'"));
  }

  [[nodiscard]] const Token& token() const { return tokens_[at_]; }
  /// Whether a token is this symbol or word.
  [[nodiscard]] bool is(std::string_view text, std::size_t ahead = 0) const {
    const auto& found = tokens_[std::min(at_ + ahead, tokens_.size() - 1)];
    return (found.kind == TokenKind::symbol || found.kind == TokenKind::name) && found.text == text;
  }
  [[nodiscard]] bool is(Words texts) const {
    return std::any_of(texts.begin(), texts.end(), [&](auto text) { return is(text); });
  }
  bool skip(std::string_view text) {
    const bool is_there = is(text);
    at_ += is_there ? 1 : 0;
    return is_there;
  }
  void expect(std::string_view text) {
    if (!skip(text)) fail_expected(fmt::format("'{}'", text));
  }
  std::string name() {
    if (token().kind != TokenKind::name) fail_expected("a name");
    return tokens_[at_++].text;
  }

  /// A node in the line of the last token.
  template <class... Parts>
  Tree node(Kind kind, std::string name, Parts... parts) {
    auto out = std::make_unique<Node>();
    out->kind = kind;
    out->line = tokens_[at_ > 0 ? at_ - 1 : 0].line;
    out->name = std::move(name);
    (add(*out, std::move(parts)), ...);
    return out;
  }
  Tree constant(Value value) {
    auto out = node(Kind::constant, "");
    out->value = std::move(value);
    return out;
  }
  void add(Node& parent, Tree part) {
    if (part) parent.depth = std::max(parent.depth, part->depth + 1);
    if (parent.depth > kDeepestTree) fail(fmt::format("the template nests more than {} levels", kDeepestTree));
    parent.parts.push_back(std::move(part));
  }

  // Statements --------------------------------------------------------------------------------------------------------

  /// Statements up to a tag that begins with one of these words, which is the next token; without words, to the end.
  Tree block(Words ends) {
    const Level level(context_);
    auto out = node(Kind::block, "");
    for (;;) {
      if (token().kind == TokenKind::text) {
        add(*out, node(Kind::text, tokens_[at_++].text));
      } else if (skip("{{")) {
        add(*out, node(Kind::output, "", expression_list()));
        expect("}}");
      } else if (skip("{%")) {
        if (is(ends)) return out;
        add(*out, statement());
        expect("%}");
      } else {
        if (ends.size() > 0) fail(fmt::format("the template ends where a tag '{}' is expected", *(ends.end() - 1)));
        return out;
      }
    }
  }

  /// The rest of a tag, the statements behind it and the word that ends them, which is left in end_.
  Tree body(Words ends) {
    expect("%}");
    auto out = block(ends);
    end_ = tokens_[at_++].text;
    return out;
  }

  /// A body whose text becomes a value, which no break can leave.
  Tree capture(std::string_view end) {
    const auto loops = std::exchange(loops_, 0);
    auto out = node(Kind::capture, "", body({end}));
    loops_ = loops;
    return out;
  }

  Tree statement() {
    if (skip("if")) return if_statement();
    if (skip("for")) return for_statement();
    if (skip("set")) return set_statement();
    if (skip("macro")) return macro_statement();
    if (skip("filter")) return filter_statement();
    if (skip("generation")) {
      has_generation_ = true;
      return node(Kind::generation, "", capture("endgeneration"));
    }
    if (loops_ > 0 && skip("break")) return node(Kind::leave, "");
    if (loops_ > 0 && skip("continue")) return node(Kind::next, "");
    fail(fmt::format("the tag '{}' is not supported, or has no place here", token().text));
  }

  Tree if_statement() {
    auto out = node(Kind::branch, "");
    do {
      add(*out, expression_list());
      add(*out, body({"elif", "else", "endif"}));
    } while (end_ == "elif");
    if (end_ == "else") add(*out, body({"endif"}));
    return out;
  }

  Tree for_statement() {
    auto out = node(Kind::loop, "", target());
    expect("in");
    add(*out, disjunction());
    add(*out, skip("if") ? expression() : nullptr);
    ++loops_;
    add(*out, body({"else", "endfor"}));
    --loops_;
    add(*out, end_ == "else" ? body({"endfor"}) : nullptr);
    return out;
  }

  Tree set_statement() {
    auto out = node(Kind::assign, "", target());
    add(*out, skip("=") ? expression_list() : capture("endset"));
    return out;
  }

  Tree macro_statement() {
    auto out = node(Kind::macro, name(), Tree());
    expect("(");
    while (!skip(")")) {
      if (!out->names.empty()) expect(",");
      out->names.push_back(name());
      add(*out, skip("=") ? expression() : nullptr);
    }
    add(*out, capture("endmacro"));
    std::swap(out->parts.front(), out->parts.back());
    out->parts.pop_back();
    return out;
  }

  /// {% filter a | b %}: the filters of what their block captures.
  Tree filter_statement() {
    auto first = node(Kind::capture, "");
    auto* const captured = first.get();
    auto filters = filter(std::move(first));
    while (skip("|")) filters = filter(std::move(filters));
    captured->parts = std::move(capture("endfilter")->parts);
    filters->depth += captured->parts[0]->depth;
    return node(Kind::output, "", std::move(filters));
  }

  /// What `set` or `for` assigns to: a name, a member of a namespace, or several.
  Tree target() {
    auto out = node(Kind::tuple, "");
    do {
      auto one = node(Kind::variable, name());
      add(*out, skip(".") ? member(std::move(one)) : std::move(one));
    } while (skip(","));
    return out->parts.size() > 1 ? std::move(out) : std::move(out->parts[0]);
  }

  // Expressions, from the weakest operator to the strongest -----------------------------------------------------------

  /// An expression, or several with commas, which are a tuple.
  Tree expression_list(bool may_be_empty = false) {
    auto out = node(Kind::tuple, "");
    bool has_comma = false;
    while (!is({"}}", "%}", ")"})) {
      add(*out, expression());
      if (!skip(",")) break;
      has_comma = true;
    }
    if (out->parts.empty() && !may_be_empty) fail_expected("an expression");
    return has_comma || out->parts.empty() ? std::move(out) : std::move(out->parts[0]);
  }

  Tree expression() {
    const Level level(context_);
    auto out = disjunction();
    while (skip("if")) {
      auto condition = disjunction();
      out = node(Kind::conditional, "", std::move(condition), std::move(out));
      add(*out, skip("else") ? expression() : nullptr);
    }
    return out;
  }

  /// Operands with operators between them, from the left.
  Tree binary(Words operators, Tree (Parser::*operand)()) {
    auto out = (this->*operand)();
    while (is(operators)) {
      out = node(Kind::binary, tokens_[at_++].text, std::move(out));
      add(*out, (this->*operand)());
    }
    return out;
  }
  Tree disjunction() { return binary({"or"}, &Parser::conjunction); }
  Tree conjunction() { return binary({"and"}, &Parser::negation); }
  Tree sum() { return binary({"+", "-"}, &Parser::concatenation); }
  Tree concatenation() { return binary({"~"}, &Parser::product); }
  Tree product() { return binary({"*", "%"}, &Parser::filtered); }

  Tree negation() {
    const Level level(context_);
    return skip("not") ? negated(negation()) : comparison();
  }
  Tree negated(Tree operand, bool is_it = true) {
    return is_it ? node(Kind::negation, "", std::move(operand)) : std::move(operand);
  }

  Tree comparison() {
    auto left = sum();
    const bool is_negated = is("not") && is("in", 1);
    at_ += is_negated ? 1 : 0;
    if (!is({"==", "!=", "<", "<=", ">", ">=", "in"})) return left;
    auto out = node(Kind::binary, tokens_[at_++].text, std::move(left));
    add(*out, sum());
    if (is({"==", "!=", "<", "<=", ">", ">="})) fail("a chain of comparisons is not supported");
    return negated(std::move(out), is_negated);
  }

  Tree filtered() {
    auto out = unary();
    while (is({"|", "is"})) out = skip("|") ? filter(std::move(out)) : test(std::move(out));
    if (is({"**", "/", "//"})) fail(fmt::format("the operator {} is not supported", token().text));
    return out;
  }

  Tree unary() {
    const Level level(context_);
    return skip("-") ? node(Kind::binary, "-", constant(std::int64_t{0}), unary()) : postfix(primary());
  }

  Tree primary() {
    if (skip("true") || skip("True")) return constant(true);
    if (skip("false") || skip("False")) return constant(false);
    if (skip("none") || skip("None")) return constant({});
    if (token().kind == TokenKind::name) return node(Kind::variable, name());
    if (token().kind == TokenKind::literal) return constant(tokens_[at_++].value);
    if (skip("[")) return items(node(Kind::list, ""), "]");
    if (skip("{")) return items(node(Kind::dict, ""), "}");
    if (!skip("(")) fail_expected("an expression");
    auto out = expression_list(true);
    expect(")");
    return out;
  }

  Tree items(Tree out, std::string_view close) {
    while (!skip(close)) {
      if (!out->parts.empty()) expect(",");
      if (skip(close)) break;
      add(*out, expression());
      if (out->kind != Kind::dict) continue;
      expect(":");
      add(*out, expression());
    }
    return out;
  }

  Tree postfix(Tree out) {
    while (is({".", "[", "("})) {
      if (is("("))
        out = with_arguments(node(Kind::call, "", std::move(out)));
      else
        out = skip(".") ? member(std::move(out)) : element(std::move(out));
    }
    return out;
  }

  Tree member(Tree object) {
    const bool is_index = token().kind == TokenKind::literal && token().value.as<std::int64_t>() != nullptr;
    auto key = constant(is_index ? tokens_[at_++].value : Value::text(name()));
    return node(is_index ? Kind::element : Kind::member, "", std::move(object), std::move(key));
  }

  /// object[key] or a slice.
  Tree element(Tree object) {
    expect("[");
    auto out = node(Kind::element, "", std::move(object), is(":") ? nullptr : expression());
    if (skip("]")) return out;
    out->kind = Kind::slice;
    while (out->parts.size() < 4) add(*out, skip(":") && !is({":", "]"}) ? expression() : nullptr);
    expect("]");
    return out;
  }

  /// A call, a filter or a test with what is between its brackets.
  Tree with_arguments(Tree out) {
    expect("(");
    for (bool is_first = true; !skip(")"); is_first = false) {
      if (!is_first) expect(",");
      if (!is_first && skip(")")) break;
      if (is({"*", "**"})) fail(fmt::format("{} in a call is not supported", token().text));
      out->names.push_back(is("=", 1) ? name() : "");
      if (!out->names.back().empty()) expect("=");
      add(*out, expression());
    }
    return out;
  }

  Tree filter(Tree value) {
    auto out = node(Kind::filter, name(), std::move(value));
    return is("(") ? with_arguments(std::move(out)) : std::move(out);
  }

  Tree test(Tree value) {
    expect("is");
    const bool is_negated = skip("not");
    auto out = node(Kind::test, name(), std::move(value));
    const bool has_argument = token().kind == TokenKind::name || token().kind == TokenKind::literal || is({"[", "{"});
    if (is("(")) {
      out = with_arguments(std::move(out));
    } else if (has_argument && !is({"else", "or", "and"})) {
      add(*out, postfix(primary()));
      out->names.emplace_back();
    }
    return negated(std::move(out), is_negated);
  }

  std::vector<Token> tokens_;
  std::size_t at_ = 0;
  Context context_;  ///< limits the nesting
  int loops_ = 0;    ///< around here
  bool has_generation_ = false;
  std::string end_;  ///< the word that ended the last body
};

}  // namespace

std::unique_ptr<Node> parse(std::string_view source) { return Parser(source).run(); }

}  // namespace trireme::jinja
