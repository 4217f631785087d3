// The functions, filters, tests and methods of templates: see the table at the end.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <utility>
#include <vector>

#include "tokenizers/jinja/strings.h"
#include "tokenizers/jinja/value.h"
#include "tokenizers/unicode.h"

namespace trireme::jinja {
namespace {

constexpr std::int64_t kMostRange = 100'000;  // items, as in Jinja's sandbox

/// A call of a builtin: its arguments, bound to its parameters.
class Call {
 public:
  /// `parameters` are names with spaces between; the required ones end with "!". "*": any arguments.
  Call(std::string_view function, std::string_view parameters, const Value& object, const Arguments& given,
       Context& owner)
      : name(function), self(object), arguments(given), context(owner) {
    if (parameters != "*") bind(split(parameters, {}));
  }

  /// The argument, or null without it. None is as if it were absent.
  [[nodiscard]] const Value* at(std::size_t i) const {
    return i < bound_.size() && bound_[i] != nullptr && !bound_[i]->is_none() ? bound_[i] : nullptr;
  }
  [[nodiscard]] bool is_set(std::size_t i) const { return at(i) != nullptr && at(i)->is_true(); }
  [[nodiscard]] Value value(std::size_t i, Value otherwise = {}) const {
    return i < bound_.size() && bound_[i] != nullptr ? *bound_[i] : otherwise;
  }
  [[nodiscard]] std::int64_t integer(std::size_t i, std::int64_t otherwise) const {
    if (at(i) != nullptr && !at(i)->integer()) fail_type("an integer", *at(i));
    return at(i) != nullptr ? *at(i)->integer() : otherwise;
  }
  [[nodiscard]] std::optional<std::string_view> text(std::size_t i) const {
    if (at(i) == nullptr) return std::nullopt;
    if (at(i)->text() == nullptr) fail_type("a text", *at(i));
    return *at(i)->text();
  }
  [[nodiscard]] std::vector<Value> items() const {
    const auto out = items_of(self, context);
    context.spend(kStepsPerItem * out->items.size());
    return out->items;
  }
  /// A list that the call makes.
  [[nodiscard]] Value list(std::vector<Value> made, ListKind kind = ListKind::list) const {
    context.spend(kStepsPerItem * made.size());
    return list_of(std::move(made), kind);
  }
  [[noreturn]] void fail_type(std::string_view needed, const Value& given) const {
    check_defined(given);
    throw Problem(fmt::format("{} needs {}, not the type {}", name, needed, given.type()));
  }

  const std::string_view name;
  const Value& self;
  const Arguments& arguments;
  Context& context;

 private:
  void bind(const std::vector<std::string_view>& names) {
    bound_.resize(names.size());
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      const auto& [key, given] = arguments[i];
      const auto found =
          key.empty() ? i : static_cast<std::size_t>(std::find(names.begin(), names.end(), key) - names.begin());
      if (found >= names.size()) throw Problem(fmt::format("{} with these arguments is not supported", name));
      bound_[found] = &given;
    }
    for (std::size_t i = 0; i < names.size(); ++i)
      if (names[i].ends_with('!') && at(i) == nullptr) throw Problem(fmt::format("{} needs more arguments", name));
  }

  std::vector<const Value*> bound_;
};

// Functions -----------------------------------------------------------------------------------------------------------

Value run_range(Call& call) {
  const bool has_begin = call.at(1) != nullptr;
  const auto begin = has_begin ? call.integer(0, 0) : 0, end = call.integer(has_begin ? 1 : 0, 0);
  const auto step = call.integer(2, 1);
  if (step == 0) throw Problem("range needs a step that is not 0");
  std::vector<Value> items;
  for (auto at = begin; step > 0 ? at < end : at > end;) {
    if (items.size() == kMostRange) throw Problem(fmt::format("a range has more than {} items", kMostRange));
    items.emplace_back(at);
    if (__builtin_add_overflow(at, step, &at)) break;
  }
  return call.list(std::move(items));
}

Value run_namespace(Call& call) {
  call.context.spend(kStepsPerItem * (1 + call.arguments.size()));
  auto& out = call.context.namespaces.emplace_back();
  for (const auto& [name, value] : call.arguments) out[name] = value;
  return Value::Data(&out);
}

// Filters of lists ----------------------------------------------------------------------------------------------------

/// The member that a filter's argument names: "a.b" for a member of a member.
Value attribute_of(const Call& call, const Value& item, const Value& path) {
  auto out = item;
  call.context.spend(path.reading_cost());
  if (path.text() == nullptr) return element_of(item, path, call.context);
  for (const auto part : split(*path.text(), ".")) out = element_of(out, Value::text(part), call.context);
  return out;
}

/// The filter or the test that an argument names, with the arguments behind it.
Value apply_named(const Call& call, BuiltinKind kind, const Value& item, std::size_t argument) {
  const Level level(call.context);
  const auto& given = call.arguments;
  call.context.spend(given.size());
  if (argument >= given.size() || given[argument].second.text() == nullptr)
    throw Problem(fmt::format("{} with these arguments is not supported", call.name));
  const Arguments rest{given.begin() + static_cast<std::ptrdiff_t>(argument) + 1, given.end()};
  return call_builtin(kind, *given[argument].second.text(), item, rest, call.context);
}

Value run_map(Call& call) {
  const bool has_attribute = call.arguments.size() == 1 && call.arguments[0].first == "attribute";
  auto items = call.self.is_true() ? call.items() : std::vector<Value>();
  for (auto& item : items)
    item = has_attribute ? attribute_of(call, item, call.arguments[0].second) : apply_named(call, kFilter, item, 0);
  return call.list(std::move(items), ListKind::generator);
}

/// The items for which a test of them, or of their attribute, is as wanted.
template <bool kByAttribute, bool kWanted>
Value run_select(Call& call) {
  const auto& given = call.arguments;
  std::vector<Value> out;
  for (const auto& item : call.self.is_true() ? call.items() : std::vector<Value>()) {
    const auto subject = kByAttribute ? attribute_of(call, item, given.empty() ? Value() : given[0].second) : item;
    const std::size_t test = kByAttribute ? 1 : 0;
    const auto result = given.size() > test ? apply_named(call, kTest, subject, test) : subject;
    if (result.is_true() == kWanted) out.push_back(item);
  }
  return call.list(std::move(out), ListKind::generator);
}

/// What items are compared by: texts in lowercase.
Value sort_key(const Value& item, Context& context) {
  context.spend(1 + item.reading_cost());
  return item.text() != nullptr ? Value::text(lower(*item.text())) : item;
}

/// Sorts items by a key of each.
template <class Key>
Value sorted(const Call& call, const std::vector<Value>& items, Key key) {
  std::vector<std::pair<Value, Value>> keyed;
  for (const auto& item : items) keyed.emplace_back(sort_key(key(item), call.context), item);
  std::stable_sort(keyed.begin(), keyed.end(),
                   [&](const auto& a, const auto& b) { return compare(a.first, b.first, call.context) < 0; });
  std::vector<Value> out;
  for (auto& one : keyed) out.push_back(std::move(one.second));
  return call.list(std::move(out));
}

Value run_sort(Call& call) {
  const auto key = [&](const Value& item) { return call.at(0) ? attribute_of(call, item, *call.at(0)) : item; };
  return sorted(call, call.items(), key);
}

Value run_items(Call& call) {
  std::vector<Value> out;
  if (call.self.is_undefined()) return call.list({});
  if (call.self.dict() == nullptr) call.fail_type("a dict", call.self);
  for (const auto& [key, value] : call.self.dict()->entries) out.push_back(list_of({key, value}, ListKind::tuple));
  return call.list(std::move(out));
}

Value run_dictsort(Call& call) {
  return sorted(call, run_items(call).list()->items, [](const Value& item) { return item.list()->items[0]; });
}

Value run_unique(Call& call) {
  std::vector<Value> out;
  for (const auto& item : call.items()) {
    const auto is_same = [&](const Value& one) {
      return equal(sort_key(one, call.context), sort_key(item, call.context), call.context);
    };
    if (std::none_of(out.begin(), out.end(), is_same)) out.push_back(item);
  }
  return call.list(std::move(out), ListKind::generator);
}

Value run_length(Call& call) { return static_cast<std::int64_t>(length_of(call.self)); }

/// One of the items, or of the sorted items.
template <std::int64_t kIndex, bool kIsSorted>
Value run_pick(Call& call) {
  const auto itself = [](const Value& item) { return item; };
  return element_of(kIsSorted ? sorted(call, call.items(), itself) : call.list(call.items()), kIndex, call.context);
}

Value run_join(Call& call) {
  std::string out;
  const auto items = call.items();
  for (std::size_t i = 0; i < items.size(); ++i)
    append(out, (i > 0 ? call.value(0, Value::text("")).printed(call.context) : "") + items[i].printed(call.context));
  return Value::text(out);
}

// Filters and methods of texts ----------------------------------------------------------------------------------------

template <std::string (*kChange)(std::string_view)>
Value run_change(Call& call) {
  const auto text = call.self.printed(call.context);
  call.context.spend(text.size() / kSlowBytesPerStep);
  return Value::text(kChange(text));
}

template <bool kAtBegin, bool kAtEnd>
Value run_strip(Call& call) {
  const auto text = call.self.printed(call.context);
  const auto chars = call.text(0);
  call.context.spend(text.size() * (chars ? chars->size() : 1) / kBytesPerStep);
  return Value::text(strip(text, chars, kAtBegin, kAtEnd));
}

Value run_split(Call& call) {
  std::vector<Value> out;
  for (const auto part : split(*call.self.text(), call.text(0), call.integer(1, -1))) {
    call.context.spend(1);
    out.push_back(Value::text(part));
  }
  return call.list(std::move(out));
}

Value run_replace(Call& call) {
  return Value::text(replace(call.self.printed(call.context), call.value(0).printed(call.context),
                             call.value(1).printed(call.context)));
}

/// Each {} becomes the next argument.
Value run_format(Call& call) {
  std::string out;
  const auto parts = split(*call.self.text(), "{}");
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (parts[i].find_first_of("{}") != parts[i].npos) throw Problem("format supports only {}");
    if (i > 0 && i > call.arguments.size()) throw Problem("format needs more arguments");
    if (i > 0) append(out, call.arguments[i - 1].second.printed(call.context));
    append(out, parts[i]);
  }
  return Value::text(out);
}

Value run_indent(Call& call) {
  const auto indent = std::string(static_cast<std::size_t>(std::clamp<std::int64_t>(call.integer(0, 4), 0, 100)), ' ');
  const auto text = call.self.printed(call.context);
  std::string out;
  for (const auto line : split(text, "\n")) {
    call.context.spend(1);
    const bool is_indented = out.empty() ? call.is_set(1) : !line.empty();
    append(out, (is_indented ? indent : "") + std::string(line) + "\n");
  }
  out.pop_back();
  return Value::text(out);
}

Value run_tojson(Call& call) {
  JsonFormat format{{}, call.is_set(0)};
  if (call.at(1) != nullptr) format.indent = std::clamp<std::int64_t>(call.integer(1, 0), 0, 100);
  return Value::text(written(call.self, call.context, format));
}

Value run_int(Call& call) {
  if (const auto integer = call.self.integer()) return *integer;
  const auto printed = call.self.printed(call.context);
  auto text = strip(printed, {}, true, true);
  if (text.starts_with('+') && !text.starts_with("+-")) text.remove_prefix(1);
  double number = 0;
  const auto end = std::from_chars(text.data(), text.data() + text.size(), number).ptr;
  const bool is_whole = !text.empty() && end == text.data() + text.size() && std::fabs(number) < 9e15;
  return is_whole ? Value(static_cast<std::int64_t>(number)) : call.value(0, std::int64_t{0});
}

// Others --------------------------------------------------------------------------------------------------------------

Value run_default(Call& call) {
  const bool is_missing = call.self.is_undefined() || (call.is_set(1) && !call.self.is_true());
  return is_missing ? call.value(0, Value::text("")) : call.self;
}

Value run_get(Call& call) {
  const auto* found = call.self.dict()->find(call.value(0), call.context);
  return found != nullptr ? *found : call.value(1);
}

template <class T>
Value run_is(Call& call) {
  return call.self.as<T>() != nullptr;
}

Value run_is_iterable(Call& call) {
  return call.self.text() || call.self.list() || call.self.dict() || call.self.is_undefined();
}

struct Builtin {
  unsigned kinds;
  std::string_view name, parameters;
  Value (*run)(Call& call);
};

constexpr auto kBuiltins = std::to_array<Builtin>({
    {kGlobal, "namespace", "*", run_namespace},
    {kGlobal, "raise_exception", "message", [](Call& c) -> Value { throw Problem(c.value(0).printed(c.context)); }},
    {kGlobal, "range", "start! stop step", run_range},
    {kFilter, "count", "", run_length},
    {kFilter, "d", "default_value boolean", run_default},
    {kFilter, "default", "default_value boolean", run_default},
    {kFilter, "dictsort", "", run_dictsort},
    {kFilter, "first", "", run_pick<0, false>},
    {kFilter, "indent", "width first", run_indent},
    {kFilter, "int", "default", run_int},
    {kFilter, "join", "d", run_join},
    {kFilter, "last", "", run_pick<-1, false>},
    {kFilter, "length", "", run_length},
    {kFilter, "list", "", [](Call& c) { return c.list(c.items()); }},
    {kFilter, "map", "*", run_map},
    {kFilter, "max", "", run_pick<-1, true>},
    {kFilter, "min", "", run_pick<0, true>},
    {kFilter, "reject", "*", run_select<false, false>},
    {kFilter, "rejectattr", "*", run_select<true, false>},
    {kFilter, "safe", "", [](Call& c) { return Value::text(c.self.printed(c.context), true); }},
    {kFilter, "select", "*", run_select<false, true>},
    {kFilter, "selectattr", "*", run_select<true, true>},
    {kFilter, "sort", "attribute", run_sort},
    {kFilter, "string", "",
     [](Call& c) { return c.self.text() != nullptr ? c.self : Value::text(c.self.printed(c.context)); }},
    {kFilter, "tojson", "ensure_ascii indent", run_tojson},
    {kFilter, "trim", "chars", run_strip<true, true>},
    {kFilter, "unique", "", run_unique},
    {kFilter | kTextMethod, "capitalize", "", run_change<capitalize>},
    {kFilter | kTextMethod, "lower", "", run_change<lower>},
    {kFilter | kTextMethod, "replace", "old! new!", run_replace},
    {kFilter | kTextMethod, "upper", "", run_change<upper>},
    {kFilter | kDictMethod, "items", "", run_items},
    {kTextMethod, "endswith", "suffix!", [](Call& c) { return Value(c.self.text()->ends_with(*c.text(0))); }},
    {kTextMethod, "format", "*", run_format},
    {kTextMethod, "lstrip", "chars", run_strip<true, false>},
    {kTextMethod, "rstrip", "chars", run_strip<false, true>},
    {kTextMethod, "split", "sep maxsplit", run_split},
    {kTextMethod, "startswith", "prefix!", [](Call& c) { return Value(c.self.text()->starts_with(*c.text(0))); }},
    {kTextMethod, "strip", "chars", run_strip<true, true>},
    {kTextMethod, "title", "", run_change<title>},
    {kDictMethod, "get", "key default", run_get},
    {kDictMethod, "keys", "", [](Call& c) { return c.list(c.items()); }},
    {kTest, "boolean", "", run_is<bool>},
    {kTest, "defined", "", [](Call& c) { return Value(!c.self.is_undefined()); }},
    {kTest, "eq", "other", [](Call& c) { return Value(equal(c.self, c.value(0), c.context)); }},
    {kTest, "equalto", "other", [](Call& c) { return Value(equal(c.self, c.value(0), c.context)); }},
    {kTest, "false", "", [](Call& c) { return Value(c.self.as<bool>() != nullptr && !c.self.is_true()); }},
    {kTest, "float", "", run_is<double>},
    {kTest, "in", "seq!", [](Call& c) { return binary("in", c.self, c.value(0), c.context); }},
    {kTest, "integer", "", run_is<std::int64_t>},
    {kTest, "iterable", "", run_is_iterable},
    {kTest, "mapping", "", run_is<DictPtr>},
    {kTest, "none", "", run_is<None>},
    {kTest, "number", "", [](Call& c) { return Value(c.self.number().has_value()); }},
    {kTest, "sequence", "", run_is_iterable},
    {kTest, "string", "", run_is<Text>},
    {kTest, "true", "", [](Call& c) { return Value(c.self.as<bool>() != nullptr && c.self.is_true()); }},
    {kTest, "undefined", "", run_is<Undefined>},
});

const Builtin* find_builtin(unsigned kind, std::string_view name) {
  const auto found = std::find_if(kBuiltins.begin(), kBuiltins.end(),
                                  [&](const Builtin& one) { return (one.kinds & kind) != 0 && one.name == name; });
  return found != kBuiltins.end() ? &*found : nullptr;
}

Value run_builtin(const Builtin& builtin, const Value& self, const Arguments& arguments, Context& context) {
  context.spend(1 + self.reading_cost());
  Call call(builtin.name, builtin.parameters, self, arguments, context);
  auto out = builtin.run(call);
  context.spend(out.reading_cost());
  return out;
}

}  // namespace

Value call_builtin(BuiltinKind kind, std::string_view name, const Value& self, const Arguments& arguments,
                   Context& context) {
  if (const auto* builtin = find_builtin(kind, name)) return run_builtin(*builtin, self, arguments, context);
  throw Problem(fmt::format("the {} \"{}\" is not supported", kind == kTest ? "test" : "filter", name));
}

std::optional<Value> find_function(BuiltinKind kind, std::string_view name, const Value& self, Context& context) {
  const auto* builtin = find_builtin(kind, name);
  if (builtin == nullptr) return std::nullopt;
  return Value::Data(std::make_shared<const Function>([builtin, self, &context](const Arguments& arguments) {
    return run_builtin(*builtin, self, arguments, context);
  }));
}

}  // namespace trireme::jinja
