#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "tokenizers/jinja/strings.h"
#include "tokenizers/jinja/value.h"
#include "tokenizers/unicode.h"

namespace trireme::jinja {
namespace {

std::int64_t of_integers(char name, std::int64_t left, std::int64_t right) {
  if (name == '%' && right == 0) throw Problem("division by zero");
  if (name == '%') return right == -1 ? 0 : left % right + (left % right != 0 && (left < 0) != (right < 0) ? right : 0);
  std::int64_t out = 0;
  const bool is_too_large = name == '+'   ? __builtin_add_overflow(left, right, &out)
                            : name == '-' ? __builtin_sub_overflow(left, right, &out)
                                          : __builtin_mul_overflow(left, right, &out);
  if (is_too_large) throw Problem("an integer becomes too large");
  return out;
}

Value sum_of_texts(std::string left, std::string_view right, bool is_safe = false) {
  append(left, right);
  return Value::text(left, is_safe);
}

/// A text that is added to a safe one is escaped.
Value sum_of_texts(const Text& left, const Text& right) {
  if (left.is_safe == right.is_safe) return sum_of_texts(*left.bytes, *right.bytes, left.is_safe);
  return left.is_safe ? sum_of_texts(*left.bytes, escape(*right.bytes), true)
                      : sum_of_texts(escape(*left.bytes), *right.bytes, true);
}

Value sum_of_lists(const List& left, const List& right, Context& context) {
  context.spend(kStepsPerItem * (left.items.size() + right.items.size()));
  auto items = left.items;
  items.insert(items.end(), right.items.begin(), right.items.end());
  return list_of(std::move(items), left.kind);
}

Value repeated(const std::string& text, std::int64_t times) {
  std::string out;
  for (std::int64_t i = 0; i < times && !text.empty(); ++i) append(out, text);
  return Value::text(out);
}

Value arithmetic(std::string_view name, const Value& left, const Value& right, Context& context) {
  const auto a = left.integer(), b = right.integer();
  const auto x = left.number(), y = right.number();
  if (a && b) return of_integers(name[0], *a, *b);
  if (x && y && name != "%") return name == "+" ? *x + *y : name == "-" ? *x - *y : *x * *y;
  if (name == "+" && left.text() != nullptr && right.text() != nullptr)
    return sum_of_texts(*left.as<Text>(), *right.as<Text>());
  if (const auto* one = left.list(), *other = right.list(); name == "+" && one && other)
    if (one->kind == other->kind) return sum_of_lists(*one, *other, context);
  if (name == "*" && left.text() != nullptr && b) return repeated(*left.text(), *b);
  check_defined(left);
  check_defined(right);
  throw Problem(fmt::format("{} of the types {} and {} is not supported", name, left.type(), right.type()));
}

bool contains(const Value& container, const Value& item, Context& context) {
  if (const auto* text = container.text()) {
    if (item.text() == nullptr) throw Problem(fmt::format("a text has no items of the type {}", item.type()));
    context.spend(container.reading_cost() + item.reading_cost());
    return find_part(*text, *item.text()) != text->npos;
  }
  if (const auto* dict = container.dict()) return dict->find(item, context) != nullptr;
  const auto list = items_of(container, context);
  return std::any_of(list->items.begin(), list->items.end(),
                     [&](const Value& one) { return equal(one, item, context); });
}

bool is_ordered(std::string_view name, int order) {
  return (order == 0 && name.size() == 2) || (order < 0 && name[0] == '<') || (order > 0 && name[0] == '>');
}

/// Where Python's slice begins or ends in a sequence.
std::int64_t slice_bound(const Value& value, std::int64_t size, bool is_backward, std::int64_t otherwise) {
  if (value.is_none()) return otherwise;
  const auto given = value.integer();
  if (!given) throw Problem(fmt::format("a slice has integers, not the type {}", value.type()));
  const auto at = *given < 0 ? std::max(*given, -size - 1) + size : *given;
  return std::clamp<std::int64_t>(at, is_backward ? -1 : 0, is_backward ? size - 1 : size);
}

/// A value of a list or a text by its place, or of a dict or a namespace by its key.
std::optional<Value> find_element(const Value& object, const Value& key, Context& context) {
  const auto found = [](const Value* value) { return value != nullptr ? std::optional(*value) : std::nullopt; };
  if (const auto* dict = object.dict()) return found(dict->find(key, context));
  if (const auto* space = object.as<Namespace*>()) {
    const auto member = (*space)->find(key.text() != nullptr ? *key.text() : "");
    return found(member != (*space)->end() ? &member->second : nullptr);
  }
  const auto* list = object.list();
  if (!key.integer() || (list == nullptr && object.text() == nullptr)) return std::nullopt;
  context.spend(object.text() != nullptr ? object.text()->size() / kSlowBytesPerStep : 0);
  const auto size = static_cast<std::int64_t>(length_of(object));
  const auto at = *key.integer() < 0 ? *key.integer() + size : *key.integer();
  if (at < 0 || at >= size) return std::nullopt;
  if (list != nullptr) return list->items[static_cast<std::size_t>(at)];
  return Value::text(chars_of(*object.text())[static_cast<std::size_t>(at)]);
}

std::optional<Value> find_method(const Value& object, const Value& key, Context& context) {
  const auto kind = object.text() != nullptr ? kTextMethod : object.dict() != nullptr ? kDictMethod : kNoKind;
  return key.text() != nullptr ? find_function(kind, *key.text(), object, context) : std::nullopt;
}

}  // namespace

Value binary(std::string_view name, const Value& left, const Value& right, Context& context) {
  if (name == "==" || name == "!=") return equal(left, right, context) == (name == "==");
  if (name == "in") return contains(right, left, context);
  if (name[0] == '<' || name[0] == '>') return is_ordered(name, compare(left, right, context));
  auto out = name == "~" ? sum_of_texts(left.printed(context), right.printed(context))
                         : arithmetic(name, left, right, context);
  context.spend(out.reading_cost());
  return out;
}

std::size_t length_of(const Value& value) {
  if (const auto* text = value.text()) return tokenizers::count_chars(*text);
  if (const auto* list = value.list()) return list->items.size();
  if (const auto* dict = value.dict()) return dict->entries.size();
  if (value.is_undefined()) return 0;
  throw Problem(fmt::format("a value of the type {} has no length", value.type()));
}

Value element_of(const Value& object, const Value& key, Context& context, bool is_member) {
  check_defined(object);
  context.spend(1);
  auto method = find_method(object, key, context);
  if (is_member && method) return *std::move(method);
  auto element = find_element(object, key, context);
  if (element || method) return element ? *std::move(element) : *std::move(method);
  const bool is_short = key.depth() == 0 && key.reading_cost() == 0;
  const auto name =
      is_short ? fmt::format("'{}'", key.printed(context)) : fmt::format("a key of the type {}", key.type());
  return Value::undefined(fmt::format("{} is not in the {}, and no method that is supported", name, object.type()));
}

Value slice_of(const Value& object, const Value& begin, const Value& end, const Value& step, Context& context) {
  check_defined(object);
  const auto* list = object.list();
  const auto* text = object.text();
  if (text == nullptr && list == nullptr) return Value::undefined(fmt::format("a {} has no slices", object.type()));
  const auto by = step.is_none() ? 1 : step.integer().value_or(0);
  if (by == 0) throw Problem("a slice has a step that is an integer and not 0");
  context.spend(text != nullptr ? text->size() / kSlowBytesPerStep : kStepsPerItem * list->items.size());
  const auto chars = text != nullptr ? chars_of(*text) : std::vector<std::string_view>();
  const auto size = static_cast<std::int64_t>(text != nullptr ? chars.size() : list->items.size());
  const auto from = slice_bound(begin, size, by < 0, by < 0 ? size - 1 : 0);
  const auto to = slice_bound(end, size, by < 0, by < 0 ? -1 : size);
  std::vector<Value> items;
  std::string out;
  for (auto at = from; by < 0 ? at > to : at < to;) {
    const auto place = static_cast<std::size_t>(at);
    if (text != nullptr)
      out += chars[place];
    else
      items.push_back(list->items[place]);
    if (__builtin_add_overflow(at, by, &at)) break;
  }
  return text != nullptr ? Value::text(out) : list_of(std::move(items), list->kind);
}

}  // namespace trireme::jinja
