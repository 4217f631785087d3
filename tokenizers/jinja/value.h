// Values of templates as Python has them: what JSON describes, tuples, and what templates make.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace trireme::jinja {

/// What is wrong in a template, thrown where the line is not known: who knows it makes a DataError of it.
class Problem : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

constexpr std::size_t kMostText = 64ULL << 20;  ///< bytes of one text
constexpr std::size_t kBytesPerStep = 64;       ///< of texts that are made or read
constexpr std::size_t kSlowBytesPerStep = 8;    ///< of texts whose characters are taken one by one
constexpr std::size_t kStepsPerItem = 4;        ///< for each item of a list that is made or copied
constexpr std::size_t kDeepestValue = 200;      ///< lists in lists

class Value;
class Context;
struct List;
struct Dict;

/// The only value that changes.
using Namespace = std::map<std::string, Value, std::less<>>;
/// The names of a call's arguments, "" for positional ones, and their values.
using Arguments = std::vector<std::pair<std::string, Value>>;
using Function = std::function<Value(const Arguments&)>;
using FunctionPtr = std::shared_ptr<const Function>;
using ListPtr = std::shared_ptr<const List>;
using DictPtr = std::shared_ptr<const Dict>;
using None = std::monostate;
/// A value that is missing, and the message of its use.
struct Undefined {
  std::shared_ptr<const std::string> message;
};
struct Text {
  std::shared_ptr<const std::string> bytes;
  bool is_safe = false;  ///< by the filter safe: a text that is added with + is escaped
};

/// Copies are cheap: texts, lists and dicts are shared and never change.
class Value {
 public:
  using Data =
      std::variant<None, Undefined, bool, std::int64_t, double, Text, ListPtr, DictPtr, Namespace*, FunctionPtr>;

  Value() = default;
  /// A boolean, an integer or a float; nothing is converted.
  template <class T>
  requires(std::same_as<T, bool> || std::same_as<T, std::int64_t> || std::same_as<T, double>) Value(T value)
      : data_(value) {}
  Value(Data data) : data_(std::move(data)) {}
  static Value text(std::string_view bytes, bool is_safe = false);
  static Value undefined(std::string_view message);
  /// @throws Problem for lists too deep, an integer above 2^63 or a text that is not UTF-8
  static Value of_json(const nlohmann::ordered_json& json, std::size_t depth = 0);

  /// The value if it has this type, else null.
  template <class T>
  [[nodiscard]] const T* as() const {
    return std::get_if<T>(&data_);
  }
  [[nodiscard]] bool is_undefined() const { return as<Undefined>() != nullptr; }
  [[nodiscard]] bool is_none() const { return as<None>() != nullptr; }
  [[nodiscard]] const std::string* text() const { return as<Text>() ? as<Text>()->bytes.get() : nullptr; }
  [[nodiscard]] const List* list() const { return as<ListPtr>() ? as<ListPtr>()->get() : nullptr; }
  [[nodiscard]] const Dict* dict() const { return as<DictPtr>() ? as<DictPtr>()->get() : nullptr; }
  /// An integer, or a boolean as one.
  [[nodiscard]] std::optional<std::int64_t> integer() const;
  /// A number, or a boolean as one.
  [[nodiscard]] std::optional<double> number() const;

  [[nodiscard]] bool is_true() const;                         ///< bool() of Python
  [[nodiscard]] std::string_view type() const;                ///< "str", "int", ...
  [[nodiscard]] std::string printed(Context& context) const;  ///< str() of Python
  [[nodiscard]] std::size_t depth() const;                    ///< how many lists and dicts are in each other
  [[nodiscard]] std::size_t reading_cost() const;             ///< steps for reading or making it

 private:
  Data data_;
};

/// A generator is what some filters give: a list that has no JSON.
enum class ListKind : std::uint8_t { list, tuple, generator };

struct List {
  std::vector<Value> items;
  ListKind kind = ListKind::list;
  std::size_t depth = 1;
};

/// Keeps the order of its keys.
struct Dict {
  using Entry = std::pair<Value, Value>;
  std::vector<Entry> entries;
  std::size_t depth = 1;

  /// The value of a key, or null.
  const Value* find(const Value& key, Context& context) const;
};

/// What one rendering owns and what it may still do: whoever makes, copies or reads many items or bytes spends for
/// them.
class Context {
 public:
  /// Bounds time and memory. @throws Problem when too many steps are taken
  void spend(std::size_t steps);
  /// Namespaces live as long as the rendering, so that one may hold itself.
  std::deque<Namespace> namespaces;

 private:
  friend class Level;
  std::size_t steps_ = 0, level_ = 0;
};

/// A level of evaluation, while it lives.
class Level {
 public:
  /// @throws Problem when there are too many
  explicit Level(Context& context);
  ~Level() { --context_.level_; }
  Level(const Level&) = delete;
  Level& operator=(const Level&) = delete;

 private:
  Context& context_;
};

struct JsonFormat {
  std::optional<std::size_t> indent;  ///< of one level
  bool is_ascii = false;
};
/// repr() of Python, or json.dumps() with a format. @throws Problem for what has no JSON
std::string written(const Value& value, Context& context, const std::optional<JsonFormat>& json = {});

/// Appends to a text. @throws Problem when it becomes too long
void append(std::string& text, std::string_view more);

/// @throws Problem when the lists are too deep, or for a function: it may hold a list, which makes them deeper unseen
Value list_of(std::vector<Value> items, ListKind kind = ListKind::list);
Value dict_of(std::vector<Dict::Entry> entries);

/// @throws Problem with the message of an undefined value
void check_defined(const Value& value);
/// The items of what Python can iterate over. @throws Problem for anything else
ListPtr items_of(const Value& value, Context& context);

bool equal(const Value& left, const Value& right, Context& context);
/// Below, at or above 0. @throws Problem for types that have no order
int compare(const Value& left, const Value& right, Context& context);

// What templates do with values. All @throw Problem for what Python refuses, and for what is not supported.

/// + - * % ~ == != < <= > >= in
Value binary(std::string_view name, const Value& left, const Value& right, Context& context);
std::size_t length_of(const Value& value);

/// object[key], or object.key, which prefers a method to a key.
Value element_of(const Value& object, const Value& key, Context& context, bool is_member = false);
Value slice_of(const Value& object, const Value& begin, const Value& end, const Value& step, Context& context);

/// The kinds of functions that are written in builtins.cpp; one function may be of several.
enum BuiltinKind : unsigned { kNoKind, kGlobal = 1, kFilter = 2, kTest = 4, kTextMethod = 8, kDictMethod = 16 };

Value call_builtin(BuiltinKind kind, std::string_view name, const Value& self, const Arguments& arguments,
                   Context& context);
/// A global function, or a method of `self`, as a value.
std::optional<Value> find_function(BuiltinKind kind, std::string_view name, const Value& self, Context& context);

}  // namespace trireme::jinja
