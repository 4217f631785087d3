// Table: a parsed TOML section whose keys remember where they were written, and the conversion of a Table to a struct.
// Only core/config/*.cpp include toml++, because it is slow to compile.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/base/factory.h"
#include "core/base/fields.h"

namespace trireme::config {

/// Where a key was written: "configs/a.toml:12:3", or "--set train.epochs=x" for the command line.
struct Origin {
  std::string source;
  std::int64_t line = 0;  ///< from 1; 0: not from a file
  std::int64_t column = 0;
  [[nodiscard]] std::string text() const;
};

struct Entry {
  FieldValue value;
  Origin origin;
  std::string written_as{};  ///< its full name if that is not section.key
};

/// One [section]: its own keys, its subsections, and its subsections that repeat ([[section.name]]), in their order.
/// `path` is "" for the file itself.
struct Table {
  std::string path;
  Origin origin;
  std::map<std::string, Entry> entries;
  std::map<std::string, Table> tables;
  std::map<std::string, std::vector<Table>> arrays{};
  /// Maps keys to the names under which the user wrote them ("tp_size": "parallel.tp"), which errors then use.
  std::map<std::string, std::string> user_names{};

  [[nodiscard]] const Entry* find(const std::string& key) const;
  [[nodiscard]] const Table* table(const std::string& key) const;
  /// A key of a section, if it is written.
  [[nodiscard]] const Entry* find(const std::string& section, const std::string& key) const;
  /// Its value, if it is a T.
  template <class T>
  [[nodiscard]] std::optional<T> value(const std::string& section, const std::string& key) const {
    const auto* entry = find(section, key);
    const auto* value = entry == nullptr ? nullptr : std::get_if<T>(&entry->value);
    return value == nullptr ? std::nullopt : std::optional(*value);
  }
};

/// Reads a file, which may be a pipe. @throws ConfigError when it cannot be read or is longer than 16 MiB
std::string read_text(const std::string& path);
/// Parses a file. @throws ConfigError with file:line:column for a syntax error or a value that no option can hold.
Table parse_file(const std::string& path);
/// Parses text; `source` is used as the file name in messages.
Table parse_text(std::string_view text, const std::string& source);
/// Applies one `--set a.b=value`: a TOML value, or an unquoted word as a string. @throws ConfigError.
void apply_override(Table& root, const std::string& assignment);

/// Fills `out` from `section` (null: all defaults) according to `fields`.
/// @throws ConfigError: unknown key (with the nearest one), wrong type, out of range; with origin, value and remedy.
void read_into(const Table* section, const FieldTable& fields, void* out);

template <class T>
T read(const Table* section, const Fields<T>& fields) {
  T out{};
  read_into(section, fields, &out);
  return out;
}

/// The section of this name, or an empty one with the place of `root` for messages.
Table section_of(const Table& root, const std::string& name);

/// A section in which one key selects the owner of further keys: the keys of `common`, and the others.
struct SplitSection {
  Table common, own;
};
SplitSection split_section(const Table& section, const FieldTable& common);
/// Reads the further keys into the options of what was selected. `all`: the tables of everything that can be selected.
/// A key that only another one has is refused, unless a file gives it its default value, which changes nothing.
/// @throws ConfigError
void read_own(const Table& own, const FieldTable& chosen, const std::vector<const FieldTable*>& all, void* out);

/// Checks options that a program has filled in by the rules of a file, for single keys and between keys. An error names
/// the key: "optimizer.lr = -1: it must be at least 0". @throws ConfigError
void check_options(const FieldTable& fields, const void* object, void* scratch);
template <class T>
void check_options(const Fields<T>& fields, const T& options) {
  T scratch{};
  check_options(fields, &options, &scratch);
}
/// The same for the options of a factory. Checks a copy, because a check may change them.
template <class Signature>
void check_own_options(const Factory<Signature>& factory) {
  auto scratch = factory;
  check_options(factory.fields(), factory.options(), scratch.options());
}

/// Converts options that a program has filled in to a section: the values of `object` that differ from their defaults.
Table as_section(const FieldTable& fields, const void* object);

/// Throws the ConfigError for a rule that involves several keys. It points at `key` of `section` if that was written,
/// else at the section. `what` gives the violated rule with its numbers and the remedy.
[[noreturn]] void fail(const Table* section, const std::string& key, const std::string& what);

/// Runs `check`. An error of it that begins with a key ("optimizer.freeze: ...", or "optimizer.group[2].parameters:
/// ..." for the second [[optimizer.group]]) is rethrown with the location of that key in `root`, for layers that do not
/// know the file. @throws any exception of `check`
void with_location(const Table& root, const std::function<void()>& check);

/// The location of a violated rule, for messages: `a.toml:12:3: train.epochs = 0`, `--set train.epochs=0` or, if the
/// key was not written, `a.toml:10:1: [train] epochs`.
std::string location_of(const Table& section, const std::string& key);

/// A value as TOML text: "text", 0.1, [1, 2], true. Doubles have up to 17 digits as needed.
std::string to_toml(const FieldValue& value);
/// Prints `[section]` and one line per row with the values of `object`. Rows that are unset, or that would have no
/// effect (FieldRules::only), are printed as comments. Parsing the result gives the same struct.
std::string print_section(const FieldTable& fields, const void* object);
/// The lines of print_section() without the [header].
std::string print_rows(const FieldTable& fields, const void* object);
/// Makes the paths among the options (FieldRules::path) absolute, except empty ones and those in the home directory
/// ("~/").
void make_paths_absolute(const FieldTable& fields, void* object);
/// The same for the values of a section before they are read.
void make_paths_absolute(const FieldTable& fields, Table& section);
/// Prints the keys of a table as the user wrote them, and its subsections.
std::string print_table(const Table& table);

}  // namespace trireme::config
