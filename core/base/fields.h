// Field tables: one row for each option of a struct. The rows are defined next to the struct that they describe. The
// parser (core/config), `trireme config --explain`, `trireme plugins` and docs/config.md all use them, so nothing is
// stated twice.
//
//   struct DdpOptions { bool static_graph = false; std::int64_t bucket_cap_mb = 25; };
//   const Fields<DdpOptions>& ddp_fields() {
//     static const auto table = Fields<DdpOptions>("plugin.torch_ddp", "PyTorch's DDP reducer.")
//         .add("static_graph", &DdpOptions::static_graph, "The graph is the same each step.")
//         .add("bucket_cap_mb", &DdpOptions::bucket_cap_mb, "Bucket size, MiB.", {.min = 1});
//     return table;
//   }
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <variant>
#include <vector>

namespace trireme {

/// A TOML value. monostate: unset (the default of an optional field).
using FieldValue = std::variant<std::monostate, bool, std::int64_t, double, std::string, std::vector<std::int64_t>,
                                std::vector<double>, std::vector<std::string>>;
/// The index of the type in a FieldValue.
template <class T>
inline constexpr std::size_t kFieldTypeOf = FieldValue(std::in_place_type<T>).index();

/// Declares that an option only has an effect when another key of its section has one of these values (written as in
/// TOML, strings without quotes). Setting it in any other case is an error.
struct OnlyWith {
  std::string key;
  std::vector<std::string> values;
};

// More than any run needs, but far enough below 2^63 that products of two counts (epochs x steps) fit.
inline constexpr double kMostSteps = 1e12, kMostSamples = 1e9;

/// The constraints of a value. Bounds apply to numbers (to each element of a list), choices to strings.
struct FieldRules {
  std::optional<double> min{};          ///< value >= min
  std::optional<double> max{};          ///< value <= max
  std::optional<double> above{};        ///< value > above
  std::optional<double> below{};        ///< value < below
  std::vector<std::string> choices{};   ///< the only strings allowed; empty: any
  std::optional<std::size_t> length{};  ///< number of elements of a list
  /// An integer may be written instead of a list of `length` equal integers, which is printed as that integer.
  bool one_for_all = false;
  std::optional<OnlyWith> only{};  ///< may be set only under this condition
  /// A file or folder, or a list of them: "~/" is expanded when it is read, and a run's own copy of its configuration
  /// holds it absolute.
  bool path = false;
  std::string path_ending{};  ///< of a path that may also be a name (text::is_path()), which stays as it is: ".so"
  /// The key in a file of another tool, such as Hugging Face's config.json. Unset: the same as here; "": it has none.
  std::optional<std::string> stored{};
  FieldValue implied{};    ///< what such a file without the key means; monostate: the option stays unset
  bool overrides = false;  ///< the user's value may differ from the file's, and takes precedence
};

/// One option: its name, allowed values and description, and how to read and write it in its struct.
struct Field {
  std::string key;
  std::size_t type{};  ///< index into FieldValue of the type it holds (a double also accepts integers)
  bool optional{};     ///< may stay unset
  std::string text;    ///< one sentence for users, with units
  FieldRules rules;
  FieldValue default_value;
  std::function<void(void*, const FieldValue&)> set;
  std::function<FieldValue(const void*)> get;
};

/// A key that users of another tool expect in a section, which does not have it.
struct AbsentKey {
  std::string key;
  std::string text;  ///< what takes its place, or why nothing does
};

/// A section whose values a rule between several keys checks.
class CheckedSection {
 public:
  virtual ~CheckedSection() = default;
  [[nodiscard]] virtual bool written(const std::string& key) const = 0;
  /// Where a key was written, for a message about another one: "a.toml:12:3: optimizer.lr = 1".
  [[nodiscard]] virtual std::string location(const std::string& key) const = 0;
  /// @throws ConfigError that points at the key. `what` gives the rule with its numbers, and the remedy.
  [[noreturn]] virtual void fail(const std::string& key, const std::string& what) const = 0;
};

/// A key whose values are names, each of which stands for values of other keys: of those that the user left unset.
struct Presets {
  std::string key{};                   ///< "size"; "": the section has no presets
  std::vector<std::string> keys{};     ///< what a name stands for
  std::vector<std::string> further{};  ///< what it stands for too where files of other tools say nothing else
  std::vector<std::pair<std::string, std::vector<FieldValue>>> names{};  ///< the values of `keys`, then of `further`
  std::string fallback{};                                                ///< the name when the key is unset
};

/// The fields of one [section], independent of the struct's type. `section` is its TOML path ("plugin.torch_ddp").
struct FieldTable {
  std::string section;
  std::string text;
  std::vector<Field> fields;
  std::vector<AbsentKey> absent{};
  /// Rules between several keys of the section, in the order in which they are checked.
  std::vector<std::function<void(const void*, const CheckedSection&)>> rules{};
  Presets presets{};
  const std::type_info* described = nullptr;  ///< the struct of these fields; null in a table without a struct
  bool repeats = false;                       ///< the section is written as [[section]], any number of times
  /// If set, these are further keys of a section that exist under this condition alone: name = sgd.
  std::string choice_key{}, choice{};

  [[nodiscard]] const Field* find(const std::string& key) const {
    for (const auto& field : fields)
      if (field.key == key) return &field;
    return nullptr;
  }
  [[nodiscard]] std::vector<std::string> keys() const {
    std::vector<std::string> out;
    for (const auto& field : fields) out.push_back(field.key);
    return out;
  }
};

namespace detail {
/// For a member of type M: `held` is M without std::optional, `type` its form in a FieldValue.
template <class M>
struct FieldType {
  using held = M;
  using type = M;
  static constexpr bool optional = false;
};
/// A struct that is a list in a file names the list's type M::List and converts explicitly from and to it.
template <class M>
requires requires { typename M::List; }
struct FieldType<M> {
  using held = M;
  using type = typename M::List;
  static constexpr bool optional = false;
};
template <class M>
struct FieldType<std::optional<M>> {
  using held = M;
  using type = typename FieldType<M>::type;
  static constexpr bool optional = true;
};

/// Lets the field's value be an integer wherever all elements of its list are equal (FieldRules::one_for_all).
inline void allow_one_for_all(Field& field) {
  using List = std::vector<std::int64_t>;
  field.get = [get = std::move(field.get), length = *field.rules.length](const void* object) -> FieldValue {
    auto value = get(object);
    const auto* list = std::get_if<List>(&value);
    if (list == nullptr || list->size() != length || *list != List(length, list->front())) return value;
    return list->front();
  };
  field.set = [set = std::move(field.set), length = *field.rules.length](void* object, const FieldValue& value) {
    const auto* one = std::get_if<std::int64_t>(&value);
    set(object, one != nullptr ? List(length, *one) : value);
  };
}
}  // namespace detail

/// A FieldTable for struct T; defaults are read from a default-constructed T.
template <class T>
class Fields : public FieldTable {
 public:
  Fields(std::string section_path, std::string what) {
    section = std::move(section_path);
    text = std::move(what);
    described = &typeid(T);
  }

  /// M is bool, std::int64_t, double, std::string, a vector of the last three, a struct that is such a list in a file
  /// (detail::FieldType), or std::optional of one of these. The member may belong to a base class of T.
  template <class B, class M>
  Fields& add(std::string key, M B::*of_base, std::string what, FieldRules allowed = {}) {
    M T::*member = of_base;
    return add(
        std::move(key), [member](T& object) -> M& { return object.*member; }, std::move(what), std::move(allowed));
  }
  /// The same for a value that is no member: value_of(T&) returns a reference to it.
  template <std::invocable<T&> ValueOf>
  Fields& add(std::string key, ValueOf value_of, std::string what, FieldRules allowed = {}) {
    using M = std::remove_reference_t<std::invoke_result_t<ValueOf, T&>>;
    using Type = detail::FieldType<M>;
    using V = typename Type::type;
    Field field;
    field.key = std::move(key);
    field.type = kFieldTypeOf<V>;
    field.optional = Type::optional;
    field.text = std::move(what);
    field.rules = std::move(allowed);
    field.get = [value_of](const void* object) -> FieldValue {
      const M& value = value_of(*const_cast<T*>(static_cast<const T*>(object)));  // value_of() changes nothing
      if constexpr (Type::optional) {
        if (!value) return std::monostate{};
        return static_cast<V>(*value);
      } else {
        return static_cast<V>(value);
      }
    };
    field.set = [value_of](void* object, const FieldValue& value) {
      M& target = value_of(*static_cast<T*>(object));
      if constexpr (Type::optional) {
        if (std::holds_alternative<std::monostate>(value)) {
          target = std::nullopt;
          return;
        }
      }
      target = static_cast<typename Type::held>(std::get<V>(value));
    };
    if (field.rules.one_for_all) detail::allow_one_for_all(field);
    const T made{};
    field.default_value = field.get(&made);
    fields.push_back(std::move(field));
    return *this;
  }
  /// Adds the key of the presets. `what`: text that the names and values do not say.
  Fields& add_presets(std::optional<std::string> T::*member, const std::string& what, Presets given) {
    std::string keys, names;
    std::vector<std::string> choices;
    for (const auto& key : given.keys) keys += (keys.empty() ? "" : "/") + key;
    for (const auto& [name, values] : given.names) {
      choices.push_back(name);
      names += (names.empty() ? "" : ", ") + name;
      for (std::size_t i = 0; i < given.keys.size(); ++i)
        names += (i == 0 ? " " : "/") + std::to_string(std::get<std::int64_t>(values.at(i)));
    }
    add(given.key, member,
        "Preset of " + keys + ": " + names + "." + what +
            " Each can be set to override the preset. Unset: the sizes of the loaded weights, else " + given.fallback +
            ".",
        {.choices = std::move(choices), .stored = ""});
    presets = std::move(given);
    return *this;
  }
  /// Adds the rows and rules of a base class of T.
  template <class B>
  Fields& add_all(const Fields<B>& base) {
    return add_part(base, [](T& whole) -> B& { return whole; });
  }
  /// Adds the rows and rules of a member of T.
  template <class M>
  Fields& add_all(M T::*member, const Fields<M>& part) {
    return add_part(part, [member](T& whole) -> M& { return whole.*member; });
  }
  /// Adds a rule between several keys; `check` takes (const T&, const CheckedSection&) and calls fail() on a breach.
  template <class Check>
  Fields& rule(Check check) {
    rules.push_back([check = std::move(check)](const void* object, const CheckedSection& section_read) {
      check(*static_cast<const T*>(object), section_read);
    });
    return *this;
  }
  /// These keys exist only where `key` of the section is `value`: name = "sgd".
  Fields& with(std::string key, std::string value) {
    choice_key = std::move(key);
    choice = std::move(value);
    return *this;
  }
  Fields& repeated() {
    repeats = true;
    return *this;
  }
  /// For a key of another tool: `what` is printed when a file sets it.
  Fields& instead(std::string key, std::string what) {
    absent.push_back({std::move(key), std::move(what)});
    return *this;
  }

 private:
  template <class Part>
  Fields& add_part(const FieldTable& part, Part part_of) {
    const auto read_part = [part_of](const void* whole) -> const void* {
      return &part_of(*const_cast<T*>(static_cast<const T*>(whole)));  // part_of() changes nothing
    };
    for (Field field : part.fields) {
      field.get = [get = field.get, read_part](const void* whole) { return get(read_part(whole)); };
      field.set = [set = field.set, part_of](void* whole, const FieldValue& value) {
        set(&part_of(*static_cast<T*>(whole)), value);
      };
      const T made{};
      field.default_value = field.get(&made);
      fields.push_back(std::move(field));
    }
    absent.insert(absent.end(), part.absent.begin(), part.absent.end());
    for (const auto& check : part.rules)
      rules.push_back([check, read_part](const void* whole, const CheckedSection& section_read) {
        check(read_part(whole), section_read);
      });
    return *this;
  }
};

}  // namespace trireme
