#include "tokenizers/jinja/value.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "tokenizers/jinja/strings.h"
#include "tokenizers/unicode.h"

namespace trireme::jinja {
namespace {

constexpr std::size_t kMostSteps = 10'000'000;  // of one rendering
constexpr std::size_t kDeepestCall = 600;       // expressions, statements and macros in each other
constexpr std::size_t kEntriesPerStep = 32;     // of dicts that are searched

std::size_t checked_depth(std::size_t depth) {
  if (depth > kDeepestValue) throw Problem(fmt::format("lists are nested more than {} levels", kDeepestValue));
  return depth;
}

std::size_t depth_around(const Value& item) {
  if (item.as<FunctionPtr>() != nullptr) throw Problem("a function in a list or a dict is not supported");
  return item.depth() + 1;
}

/// Writes repr() of Python, or JSON.
class Writer {
 public:
  Writer(const std::optional<JsonFormat>& json, Context& context) : json_(json), context_(context) {}

  void add(const Value& value, std::size_t level) {
    context_.spend(1);
    if (const auto* list = value.list()) {
      const bool is_tuple = list->kind == ListKind::tuple && !json_;
      if (json_ && list->kind == ListKind::generator) throw Problem("a generator has no JSON: use the filter list");
      const auto* close = !is_tuple ? "]" : list->items.size() == 1 ? ",)" : ")";
      add_all(list->items, level, is_tuple ? "(" : "[", close, [&](const Value& item) { add(item, level + 1); });
    } else if (const auto* dict = value.dict()) {
      add_all(dict->entries, level, "{", "}", [&](const Dict::Entry& entry) {
        add(json_ && entry.first.text() == nullptr ? Value::text(json_word(entry.first)) : entry.first, level);
        append(out, ": ");
        add(entry.second, level + 1);
      });
    } else if (const auto* text = value.as<Text>()) {
      context_.spend(text->bytes->size() / kSlowBytesPerStep);
      append(out, json_ ? nlohmann::json(*text->bytes).dump(-1, ' ', json_->is_ascii) : quoted_text(*text->bytes));
    } else {
      append(out, json_ ? json_word(value) : value.is_undefined() ? "Undefined" : value.printed(context_));
    }
  }

  std::string out;

 private:
  std::string json_word(const Value& value) {
    if (value.is_none()) return "null";
    if (const auto* boolean = value.as<bool>()) return *boolean ? "true" : "false";
    if (!value.number()) throw Problem(fmt::format("a value of the type {} has no JSON", value.type()));
    return std::isinf(*value.number()) ? *value.number() < 0 ? "-Infinity" : "Infinity" : value.printed(context_);
  }

  template <class Items, class Add>
  void add_all(const Items& items, std::size_t level, std::string_view open, std::string_view close, Add add_item) {
    const auto line = [&](std::size_t at) {
      return json_ && json_->indent ? "\n" + std::string(at * *json_->indent, ' ') : "";
    };
    append(out, open);
    for (std::size_t i = 0; i < items.size(); ++i) {
      if (i > 0) append(out, json_ && json_->indent ? "," : ", ");
      append(out, line(level + 1));
      add_item(items[i]);
    }
    append(out, items.empty() ? "" : line(level));
    append(out, close);
  }

  const std::optional<JsonFormat>& json_;
  Context& context_;
};

template <class T>
int order_of(const T& left, const T& right) {
  return left < right ? -1 : right < left ? 1 : 0;
}

}  // namespace

void Context::spend(std::size_t steps) {
  steps_ += steps;
  if (steps_ > kMostSteps || steps > kMostSteps)
    throw Problem(fmt::format("the template takes more than {} steps", kMostSteps));
}

Level::Level(Context& context) : context_(context) {
  if (context.level_ >= kDeepestCall)
    throw Problem(fmt::format("the template nests more than {} levels of calls", kDeepestCall));
  ++context.level_;
}

Value Value::text(std::string_view bytes, bool is_safe) {
  return Data(Text{std::make_shared<const std::string>(bytes), is_safe});
}

Value Value::undefined(std::string_view message) {
  return Data(Undefined{std::make_shared<const std::string>(message)});
}

Value Value::of_json(const nlohmann::ordered_json& json, std::size_t depth) {
  checked_depth(depth);
  const auto text_of = [](const std::string& text) {
    if (tokenizers::invalid_byte(text)) throw Problem("a text of the variables is not UTF-8");
    return Value::text(text);
  };
  if (json.is_string()) return text_of(json.get_ref<const std::string&>());
  if (json.is_boolean()) return json.get<bool>();
  if (json.is_number_float()) return json.get<double>();
  if (json.is_number_unsigned() && json.get<std::uint64_t>() > std::uint64_t{INT64_MAX})
    throw Problem(fmt::format("the number {} of the variables is too large", json.get<std::uint64_t>()));
  if (json.is_number()) return json.get<std::int64_t>();
  if (json.is_array()) {
    std::vector<Value> items;
    for (const auto& item : json) items.push_back(of_json(item, depth + 1));
    return list_of(std::move(items));
  }
  if (!json.is_object()) return {};
  std::vector<Dict::Entry> entries;
  for (const auto& [key, value] : json.items()) entries.emplace_back(text_of(key), of_json(value, depth + 1));
  return dict_of(std::move(entries));
}

std::optional<std::int64_t> Value::integer() const {
  if (const auto* boolean = as<bool>()) return *boolean ? 1 : 0;
  const auto* integer = as<std::int64_t>();
  return integer != nullptr ? std::optional(*integer) : std::nullopt;
}

std::optional<double> Value::number() const {
  if (const auto* number = as<double>()) return *number;
  const auto whole = integer();
  return whole ? std::optional(static_cast<double>(*whole)) : std::nullopt;
}

bool Value::is_true() const {
  if (const auto* text = this->text()) return !text->empty();
  if (const auto* list = this->list()) return !list->items.empty();
  if (const auto* dict = this->dict()) return !dict->entries.empty();
  if (const auto number = this->number()) return *number != 0;
  return !is_none() && !is_undefined();
}

std::string_view Value::type() const {
  static constexpr std::array<std::string_view, std::variant_size_v<Data>> kTypes{
      "NoneType", "Undefined", "bool", "int", "float", "str", "list", "dict", "Namespace", "function"};
  return list() != nullptr && list()->kind == ListKind::tuple ? "tuple" : kTypes[data_.index()];
}

std::string Value::printed(Context& context) const {
  context.spend(reading_cost());
  if (const auto* text = this->text()) return *text;
  if (is_none()) return "None";
  if (is_undefined()) return "";
  if (const auto* boolean = as<bool>()) return *boolean ? "True" : "False";
  if (const auto* integer = as<std::int64_t>()) return fmt::to_string(*integer);
  if (const auto* number = as<double>()) return float_text(*number);
  return list() != nullptr || dict() != nullptr ? written(*this, context) : fmt::format("<{}>", type());
}

std::size_t Value::depth() const { return list() != nullptr ? list()->depth : dict() != nullptr ? dict()->depth : 0; }

std::size_t Value::reading_cost() const { return text() != nullptr ? text()->size() / kBytesPerStep : 0; }

const Value* Dict::find(const Value& key, Context& context) const {
  context.spend(entries.size() * (1 + key.reading_cost()) / kEntriesPerStep);
  for (const auto& entry : entries) {
    const auto *one = entry.first.text(), *other = key.text();
    if (one != nullptr && other != nullptr ? *one == *other : equal(entry.first, key, context)) return &entry.second;
  }
  return nullptr;
}

std::string written(const Value& value, Context& context, const std::optional<JsonFormat>& json) {
  Writer writer(json, context);
  writer.add(value, 0);
  return std::move(writer.out);
}

void append(std::string& text, std::string_view more) {
  if (text.size() + more.size() > kMostText)
    throw Problem(fmt::format("the template makes a text of more than {} MiB", kMostText >> 20));
  text += more;
}

Value list_of(std::vector<Value> items, ListKind kind) {
  std::size_t depth = 1;
  for (const auto& item : items) depth = std::max(depth, depth_around(item));
  return Value::Data(std::make_shared<const List>(List{std::move(items), kind, checked_depth(depth)}));
}

Value dict_of(std::vector<Dict::Entry> entries) {
  std::size_t depth = 1;
  for (const auto& entry : entries) depth = std::max({depth, depth_around(entry.first), depth_around(entry.second)});
  return Value::Data(std::make_shared<const Dict>(Dict{std::move(entries), checked_depth(depth)}));
}

void check_defined(const Value& value) {
  if (const auto* undefined = value.as<Undefined>()) throw Problem(*undefined->message);
}

ListPtr items_of(const Value& value, Context& context) {
  if (const auto* list = value.as<ListPtr>()) return *list;
  List out;
  if (const auto* text = value.text()) {
    context.spend(kStepsPerItem * text->size());
    for (const auto c : chars_of(*text)) out.items.push_back(Value::text(c));
  } else if (const auto* dict = value.dict()) {
    context.spend(kStepsPerItem * dict->entries.size());
    for (const auto& entry : dict->entries) out.items.push_back(entry.first);
  } else if (!value.is_undefined()) {
    throw Problem(fmt::format("a value of the type {} has no items", value.type()));
  }
  return std::make_shared<const List>(std::move(out));
}

bool equal(const Value& left, const Value& right, Context& context) {
  context.spend(1);
  if (const auto a = left.integer(), b = right.integer(); a && b) return *a == *b;
  if (const auto a = left.number(), b = right.number(); a && b) return *a == *b;
  if (const auto* a = left.text(), *b = right.text(); a && b) {
    context.spend(a->size() == b->size() ? left.reading_cost() : 0);
    return *a == *b;
  }
  const auto is_equal = [&](const Value& one, const Value& other) { return equal(one, other, context); };
  if (const auto* a = left.list(), *b = right.list(); a && b)
    return a == b || (a->kind == b->kind &&
                      std::equal(a->items.begin(), a->items.end(), b->items.begin(), b->items.end(), is_equal));
  if (const auto* a = left.dict(), *b = right.dict(); a && b)
    return a == b || (a->entries.size() == b->entries.size() &&
                      std::all_of(a->entries.begin(), a->entries.end(), [&](const Dict::Entry& entry) {
                        const auto* other = b->find(entry.first, context);
                        return other != nullptr && is_equal(entry.second, *other);
                      }));
  if (const auto* a = left.as<Namespace*>(), *b = right.as<Namespace*>(); a && b) return *a == *b;
  return (left.is_none() && right.is_none()) || (left.is_undefined() && right.is_undefined());
}

int compare(const Value& left, const Value& right, Context& context) {
  context.spend(1);
  if (const auto a = left.integer(), b = right.integer(); a && b) return order_of(*a, *b);
  if (const auto a = left.number(), b = right.number(); a && b) return order_of(*a, *b);
  if (const auto* a = left.text(), *b = right.text(); a && b) {
    context.spend(std::min(left.reading_cost(), right.reading_cost()));
    return order_of(*a, *b);
  }
  check_defined(left);
  check_defined(right);
  throw Problem(fmt::format("the types {} and {} have no order", left.type(), right.type()));
}

}  // namespace trireme::jinja
