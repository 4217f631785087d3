// Renders templates: executes the statements of the tree and evaluates its expressions.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "tokenizers/jinja/syntax.h"
#include "tokenizers/jinja/template.h"
#include "tokenizers/jinja/value.h"
#include "tokenizers/unicode.h"

namespace trireme::jinja {
namespace {

using Kind = NodeKind;

/// The variables of a template, a loop's turn, a macro's call or a block.
struct Scope {
  std::shared_ptr<Scope> parent;
  std::map<std::string, Value, std::less<>> variables;
};
using ScopePtr = std::shared_ptr<Scope>;

ScopePtr scope_in(const ScopePtr& parent) { return std::make_shared<Scope>(Scope{parent, {}}); }

/// What `loop` is in the turn of an item.
Value loop_variable(const std::vector<Value>& items, std::size_t turn) {
  const auto index = static_cast<std::int64_t>(turn), length = static_cast<std::int64_t>(items.size());
  std::vector<Dict::Entry> entries;
  const auto add = [&](std::string_view name, Value value) {
    entries.emplace_back(Value::text(name), std::move(value));
  };
  add("index0", index);
  add("index", index + 1);
  add("revindex0", length - index - 1);
  add("revindex", length - index);
  add("depth0", std::int64_t{0});
  add("depth", std::int64_t{1});
  add("length", length);
  add("first", index == 0);
  add("last", index + 1 == length);
  if (turn > 0) add("previtem", items[turn - 1]);
  if (turn + 1 < items.size()) add("nextitem", items[turn + 1]);
  return dict_of(std::move(entries));
}

/// strftime_now(format), of the local time.
Value clock_at(std::time_t now) {
  return Value::Data(std::make_shared<const Function>([now](const Arguments& arguments) {
    const auto* format = arguments.size() == 1 ? arguments[0].second.text() : nullptr;
    if (format == nullptr) throw Problem("strftime_now needs a format");
    std::tm local{};
    localtime_r(&now, &local);
    std::array<char, 4096> out{};  // a longer text is empty
    return Value::text(
        tokenizers::repaired({out.data(), std::strftime(out.data(), out.size(), format->c_str(), &local)}));
  }));
}

/// One rendering of a template.
class Interpreter {
 public:
  /// @throws Problem
  Rendered run(const Node& root, const nlohmann::ordered_json& variables, std::optional<std::time_t> now) {
    const auto scope = scope_in(nullptr);
    if (now) scope->variables["strftime_now"] = clock_at(*now);
    scope->variables["self"] = dict_of({});  // the blocks of a template, which has none
    for (const auto& [name, value] : variables.items()) scope->variables[name] = Value::of_json(value);
    texts_.emplace_back();
    execute(root, scope_in(scope));
    return {std::move(texts_.front()), std::move(generated_)};
  }
  /// The line of what was evaluated last.
  [[nodiscard]] std::size_t line() const { return line_; }

 private:
  enum class Flow : std::uint8_t { on, leave, next };

  // Statements --------------------------------------------------------------------------------------------------------

  Flow execute(const Node& node, const ScopePtr& scope) {
    const Level level(context_);
    context_.spend(1);
    line_ = node.line;
    if (node.kind == Kind::text) return write(node.name);
    if (node.kind == Kind::output) return write(evaluate(*node.parts[0], scope).printed(context_));
    if (node.kind == Kind::block) return execute_block(node, scope);
    if (node.kind == Kind::branch) return execute_branch(node, scope);
    if (node.kind == Kind::loop) return execute_loop(node, scope);
    if (node.kind == Kind::assign) return assign(*node.parts[0], evaluate(*node.parts[1], scope), scope);
    if (node.kind == Kind::macro) return assign_macro(node, scope);
    if (node.kind == Kind::generation) return execute_generation(node, scope);
    return node.kind == Kind::leave ? Flow::leave : Flow::next;
  }

  Flow execute_block(const Node& node, const ScopePtr& scope) {
    for (const auto& statement : node.parts)
      if (const auto flow = execute(*statement, scope); flow != Flow::on) return flow;
    return Flow::on;
  }

  Flow execute_branch(const Node& node, const ScopePtr& scope) {
    std::size_t i = 0;
    for (; i + 1 < node.parts.size(); i += 2)
      if (evaluate(*node.parts[i], scope).is_true()) return execute(*node.parts[i + 1], scope);
    return i < node.parts.size() ? execute(*node.parts[i], scope) : Flow::on;
  }

  Flow execute_loop(const Node& node, const ScopePtr& scope) {
    auto items = items_of(evaluate(*node.parts[1], scope), context_)->items;
    context_.spend(kStepsPerItem * items.size());
    const auto scope_of = [&](const Value& item) {
      context_.spend(kStepsPerItem);
      auto out = scope_in(scope);
      assign(*node.parts[0], item, out);
      return out;
    };
    if (node.parts[2])
      std::erase_if(items, [&](const Value& item) { return !evaluate(*node.parts[2], scope_of(item)).is_true(); });
    for (std::size_t i = 0; i < items.size(); ++i) {
      const auto turn = scope_of(items[i]);
      turn->variables.emplace("loop", loop_variable(items, i));
      if (execute(*node.parts[3], turn) == Flow::leave) break;
    }
    return items.empty() && node.parts[4] ? execute(*node.parts[4], scope_in(scope)) : Flow::on;
  }

  Flow execute_generation(const Node& node, const ScopePtr& scope) {
    // Inside a block that captures, transformers counts from the text outside of it too.
    const auto begin = texts_.front().size();
    const auto text = evaluate(*node.parts[0], scope).printed(context_);
    generated_.emplace_back(begin, begin + text.size());
    return write(text);
  }

  Flow write(std::string_view text) {
    context_.spend(text.size() / kBytesPerStep);
    append(texts_.back(), text);
    return Flow::on;
  }

  Flow assign(const Node& target, const Value& value, const ScopePtr& scope) {
    context_.spend(1);
    if (target.kind == Kind::variable) {
      scope->variables[target.name] = value;
    } else if (target.kind == Kind::member) {
      const auto object = evaluate(*target.parts[0], scope);
      const auto* space = object.as<Namespace*>();
      if (space == nullptr) throw Problem("only a namespace has members that can be set");
      (**space)[*target.parts[1]->value.text()] = value;
    } else {
      const auto list = items_of(value, context_);
      if (list->items.size() != target.parts.size())
        throw Problem(fmt::format("{} values cannot be assigned to {} names", list->items.size(), target.parts.size()));
      for (std::size_t i = 0; i < list->items.size(); ++i) assign(*target.parts[i], list->items[i], scope);
    }
    return Flow::on;
  }

  // Macros ------------------------------------------------------------------------------------------------------------

  Flow assign_macro(const Node& node, const ScopePtr& scope) {
    // The scope holds the macro, which must not hold the scope.
    const auto call = [this, &node, weak = std::weak_ptr(scope)](const Arguments& arguments) {
      const auto outer = weak.lock();
      if (outer == nullptr) throw Problem(fmt::format("the macro {} is called outside of where it is", node.name));
      return call_macro(node, outer, arguments);
    };
    scope->variables[node.name] = Value::Data(std::make_shared<const Function>(call));
    return Flow::on;
  }

  Value call_macro(const Node& node, const ScopePtr& outer, const Arguments& arguments) {
    const auto scope = scope_in(outer);
    const auto line = line_;
    const auto& names = node.names;
    context_.spend((1 + arguments.size()) * names.size());
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      const auto& [name, value] = arguments[i];
      if (name.empty() ? i >= names.size() : std::find(names.begin(), names.end(), name) == names.end())
        throw Problem(fmt::format("the macro {} has no parameter for its argument {}{}", node.name, i + 1,
                                  name.empty() ? "" : ", " + name));
      scope->variables[name.empty() ? names[i] : name] = value;
    }
    for (std::size_t i = 0; i < names.size(); ++i) {
      if (scope->variables.find(names[i]) != scope->variables.end()) continue;
      auto undefined = Value::undefined(fmt::format("parameter '{}' was not provided", names[i]));
      scope->variables[names[i]] = node.parts[i + 1] ? evaluate(*node.parts[i + 1], scope) : undefined;
    }
    auto out = evaluate(*node.parts[0], scope);
    line_ = line;
    return out;
  }

  // Expressions -------------------------------------------------------------------------------------------------------

  Value evaluate(const Node& node, const ScopePtr& scope) {
    const Level level(context_);
    context_.spend(1);
    line_ = node.line;
    const auto part = [&](std::size_t i) { return evaluate(*node.parts[i], scope); };
    if (node.kind == Kind::constant) return node.value;
    if (node.kind == Kind::variable) return variable(node.name, *scope);
    if (node.kind == Kind::capture) return captured(*node.parts[0], scope);
    if (node.kind == Kind::conditional) {
      if (part(0).is_true()) return part(1);
      return node.parts[2] ? part(2) : Value::undefined("an if without else has no value");
    }
    if (node.kind == Kind::binary && (node.name == "and" || node.name == "or")) {
      auto left = part(0);
      return left.is_true() == (node.name == "and") ? part(1) : left;
    }
    return evaluate_operation(node, scope);
  }

  /// The text of statements in a scope of their own.
  Value captured(const Node& block, const ScopePtr& scope) {
    texts_.emplace_back();
    execute(block, scope_in(scope));
    auto out = Value::text(texts_.back());
    texts_.pop_back();
    return out;
  }

  Value variable(const std::string& name, const Scope& scope) {
    for (const auto* at = &scope; at != nullptr; at = at->parent.get()) {
      context_.spend(1);
      if (const auto found = at->variables.find(name); found != at->variables.end()) return found->second;
    }
    if (auto function = find_function(kGlobal, name, {}, context_)) return *std::move(function);
    return Value::undefined(fmt::format("'{}' is undefined", name));
  }

  /// What has all of its parts evaluated first.
  Value evaluate_operation(const Node& node, const ScopePtr& scope) {
    std::vector<Value> operands;
    for (const auto& part : node.parts) operands.push_back(part ? evaluate(*part, scope) : Value());
    line_ = node.line;
    for (const auto& operand : operands) context_.spend(node.kind == Kind::member ? 0 : operand.reading_cost());
    if (node.kind == Kind::list || node.kind == Kind::tuple) {
      context_.spend(kStepsPerItem * operands.size());
      return list_of(std::move(operands), node.kind == Kind::tuple ? ListKind::tuple : ListKind::list);
    }
    if (node.kind == Kind::dict) return dict_of_operands(operands);
    if (node.kind == Kind::member) return element_of(operands[0], operands[1], context_, true);
    if (node.kind == Kind::element) return element_of(operands[0], operands[1], context_);
    if (node.kind == Kind::slice) return slice_of(operands[0], operands[1], operands[2], operands[3], context_);
    if (node.kind == Kind::negation) return !operands[0].is_true();
    if (node.kind == Kind::binary) return binary(node.name, operands[0], operands[1], context_);
    Arguments arguments;
    for (std::size_t i = 0; i < node.names.size(); ++i) arguments.emplace_back(node.names[i], operands[i + 1]);
    if (node.kind == Kind::call) return call(operands[0], arguments);
    return call_builtin(node.kind == Kind::filter ? kFilter : kTest, node.name, operands[0], arguments, context_);
  }

  Value dict_of_operands(const std::vector<Value>& operands) {
    Dict out;
    for (std::size_t i = 0; i < operands.size(); i += 2) {
      context_.spend(kStepsPerItem);
      if (operands[i].depth() > 0)
        throw Problem(fmt::format("a key of the type {} is not supported", operands[i].type()));
      if (out.find(operands[i], context_) != nullptr) throw Problem("a dict with a key twice is not supported");
      out.entries.emplace_back(operands[i], operands[i + 1]);
    }
    return dict_of(std::move(out.entries));
  }

  static Value call(const Value& function, const Arguments& arguments) {
    check_defined(function);
    const auto* callee = function.as<FunctionPtr>();
    if (callee == nullptr) throw Problem(fmt::format("a value of the type {} is no function", function.type()));
    return (**callee)(arguments);
  }

  Context context_;
  std::size_t line_ = 1;
  std::vector<std::string> texts_;  ///< the result, and what blocks and macros capture
  std::vector<std::pair<std::size_t, std::size_t>> generated_;
};

}  // namespace

Template::Template(std::string_view source) {
  if (const auto at = tokenizers::invalid_byte(source))
    throw DataError(fmt::format("the template is not UTF-8: byte {}", *at));
  try {
    root_ = parse(source);
  } catch (const Problem& problem) {
    throw DataError(problem.what());
  }
}

bool Template::has_generation() const { return root_->has_generation; }

Rendered Template::render(const nlohmann::ordered_json& variables, std::optional<std::time_t> now) const {
  TRIREME_CHECK(variables.is_object(), "a template's variables are an object");
  Interpreter interpreter;
  try {
    return interpreter.run(*root_, variables, now);
  } catch (const Problem& problem) {
    throw DataError(fmt::format("line {}: {}", interpreter.line(), problem.what()));
  }
}

}  // namespace trireme::jinja
