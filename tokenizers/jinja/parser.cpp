// The parser of templates, function by function of Jinja's.
#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <utility>

#include "tokenizers/jinja/syntax.h"
#include "tokenizers/jinja/tokens.h"

namespace trireme::jinja {
namespace {

constexpr std::size_t kDeepestTree = 200;

using Tree = std::unique_ptr<Node>;
using Kind = NodeKind;
using Words = std::initializer_list<std::string_view>;

class Parser {
 public:
  explicit Parser(std::string_view source) : tokens_(tokens_of(source)) {}

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
