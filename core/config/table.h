// Table: a parsed TOML section whose keys remember where they were written, and how a Table becomes a struct.
// Only core/config/*.cpp include toml++ (it is slow to compile).
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

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
  std::string written_as{};  ///< its full name where that is not section.key
};

/// One [section]: its own keys, and the sections inside it. `path` is "" for the file itself.
struct Table {
  std::string path;
  Origin origin;
  std::map<std::string, Entry> entries;
  std::map<std::string, Table> tables;
  /// Keys that the user writes elsewhere, under these names ("tp_size": "parallel.tp"): errors speak of them so.
  std::map<std::string, std::string> written_elsewhere{};

  [[nodiscard]] const Entry* find(const std::string& key) const;
  [[nodiscard]] const Table* table(const std::string& key) const;
};

/// The text of a file, a pipe too. @throws ConfigError when it cannot be read, or is longer than 16 MiB
std::string read_text(const std::string& path);
/// Parses a file. @throws ConfigError with file:line:column on a syntax error or a value no option can hold.
Table parse_file(const std::string& path);
/// Parses text; `source` stands for the file name in messages.
Table parse_text(std::string_view text, const std::string& source);
/// Applies one `--set a.b=value`: a TOML value, or a bare word as text. @throws ConfigError.
void apply_override(Table& root, const std::string& assignment);

/// Fills `out` from `section` (null: all defaults) by the rows of `fields`.
/// @throws ConfigError: unknown key (with the nearest), wrong type, out of range; with origin, value and remedy.
void read_into(const Table* section, const FieldTable& fields, void* out);

template <class T>
T read(const Table* section, const Fields<T>& fields) {
  T out{};
  read_into(section, fields, &out);
  return out;
}

/// What a program has filled in, as a section: the values of `object` that differ from their defaults.
Table as_section(const FieldTable& fields, const void* object);

/// The ConfigError for a rule that spans keys: points at `key` of `section` if it was written, else at the section.
/// `what` says the broken rule with its numbers and the remedy.
[[noreturn]] void fail(const Table* section, const std::string& key, const std::string& what);

/// Where a rule is broken, for messages: `a.toml:12:3: train.epochs = 0`, `--set train.epochs=0` or, when the key was
/// not written, `a.toml:10:1: [train] epochs`.
std::string place_of(const Table& section, const std::string& key);

/// A value as TOML text: "text", 0.1, [1, 2], true. Doubles keep 17 digits where they need them.
std::string to_toml(const FieldValue& value);
/// `[section]` and one line a row, every value as `object` has it; rows that are unset, or that would change
/// nothing (FieldRules::only), are left as comments. Parsing it gives the same struct.
std::string print_section(const FieldTable& fields, const void* object);
/// The keys of a table as the user wrote them, and the sections inside it.
std::string print_table(const Table& table);

}  // namespace trireme::config
