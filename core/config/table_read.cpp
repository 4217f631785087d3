// Reads a Table into a struct according to a field table, and reports errors.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <filesystem>

#include "core/base/bounds.h"
#include "core/base/environment.h"
#include "core/base/error.h"
#include "core/base/text.h"
#include "core/config/document.h"
#include "core/config/table.h"

namespace trireme::config {
namespace {

std::string hint(const std::string& path) { return fmt::format("  (trireme config --explain {})", path); }

[[noreturn]] void refuse(const Table& section, const Field& field, const std::string& what) {
  fail(&section, field.key, what + hint(section.path + "." + field.key));
}

std::string kind_of(const FieldValue& value) {
  if (std::holds_alternative<std::string>(value)) return "a string";
  if (std::holds_alternative<bool>(value)) return "true or false";
  return value.index() >= kFieldTypeOf<std::vector<std::int64_t>> ? type_text(value.index()) : to_toml(value);
}

// The value as the field's type: integers are accepted as numbers, an empty list as any list. nullopt: no match.
std::optional<FieldValue> as_type(const FieldValue& value, const Field& field) {
  const auto type = field.type;
  if (value.index() == type) return value;
  if (const auto* integer = std::get_if<std::int64_t>(&value)) {
    if (type == kFieldTypeOf<double>) return static_cast<double>(*integer);
    if (field.rules.one_for_all) return value;
  }
  if (const auto* list = std::get_if<std::vector<std::int64_t>>(&value)) {
    if (type == kFieldTypeOf<std::vector<double>>) return std::vector<double>(list->begin(), list->end());
    if (list->empty() && type == kFieldTypeOf<std::vector<std::string>>) return std::vector<std::string>{};
  }
  return std::nullopt;
}

/// A string that was written without quotes: a number among the choices, or any word after --set, where the shell
/// removes quotes. nullopt: neither.
std::optional<FieldValue> as_text(const Entry& entry, const Field& field) {
  const bool scalar = entry.value.index() < kFieldTypeOf<std::string>;
  if (field.type != kFieldTypeOf<std::string> || !scalar) return std::nullopt;
  const auto& choices = field.rules.choices;
  const auto plain = to_toml(entry.value);
  if (std::find(choices.begin(), choices.end(), plain) != choices.end()) return plain;
  if (entry.origin.source.rfind("--set ", 0) != 0) return std::nullopt;
  return entry.origin.source.substr(entry.origin.source.find('=') + 1);
}

// Whether the text is a number beyond the range of double, such as 1e400, which TOML does not accept as a number.
bool beyond_double(const std::string& text) {
  char* end = nullptr;
  return !text.empty() && std::isinf(std::strtod(text.c_str(), &end)) && *end == '\0' &&
         text.find_first_of("0123456789") != std::string::npos;
}

void check_number(const Table& section, const Field& field, double value, bool of_list) {
  if (in_bounds(value, field.rules)) return;
  const auto bounds = bounds_text(field.rules);
  refuse(section, field,
         fmt::format("{} must be {}", of_list ? "each number" : "it",
                     bounds.empty() || !std::isfinite(value) ? "a finite number" : bounds));
}

void check_choice(const Table& section, const Field& field, const std::string& value) {
  const auto& choices = field.rules.choices;
  if (choices.empty() || std::find(choices.begin(), choices.end(), value) != choices.end()) return;
  auto alike = choices;  // a slip seldom changes the first letter; "gpu" is not meant to be "cpu"
  const auto first = [](const std::string& word) {
    return word.empty() ? -1 : std::tolower(static_cast<unsigned char>(word.front()));
  };
  std::erase_if(alike, [&](const auto& choice) { return first(choice) != first(value); });
  refuse(section, field, fmt::format("must be one of {}{}", text::join(choices), text::did_you_mean(value, alike)));
}

void check_rules(const Table& section, const Field& field, const FieldValue& value) {
  std::optional<std::size_t> length;
  if (const auto* integer = std::get_if<std::int64_t>(&value)) {
    check_number(section, field, static_cast<double>(*integer), false);
  } else if (const auto* number = std::get_if<double>(&value)) {
    check_number(section, field, *number, false);
  } else if (const auto* text = std::get_if<std::string>(&value)) {
    check_choice(section, field, *text);
  } else if (const auto* integers = std::get_if<std::vector<std::int64_t>>(&value)) {
    for (const auto element : *integers) check_number(section, field, static_cast<double>(element), true);
    length = integers->size();
  } else if (const auto* list = std::get_if<std::vector<double>>(&value)) {
    for (const auto element : *list) check_number(section, field, element, true);
    length = list->size();
  } else if (const auto* texts = std::get_if<std::vector<std::string>>(&value)) {
    for (const auto& element : *texts) check_choice(section, field, element);
    length = texts->size();
  }
  if (length && field.rules.length && *length != *field.rules.length)
    refuse(section, field, fmt::format("must have {} elements, not {}", *field.rules.length, *length));
}

/// Expands "~/x" as a shell does; a shell does so only at the beginning of a word.
std::string expanded(std::string path) {
  const auto home_dir = environment("HOME");
  if ((path == "~" || path.starts_with("~/")) && !home_dir.empty()) path.replace(0, 1, home_dir);
  return path;
}

/// Applies `change` to each path that the value holds.
template <class Change>
FieldValue changed_paths(const Field& field, FieldValue value, Change change) {
  const auto& ending = field.rules.path_ending;
  const auto apply = [&](std::string& text) {
    if (ending.empty() || text::is_path(text, ending)) text = change(std::move(text));
  };
  if (auto* text = std::get_if<std::string>(&value)) apply(*text);
  if (auto* texts = std::get_if<std::vector<std::string>>(&value))
    for (auto& text : *texts) apply(text);
  return value;
}

void read_field(const Table& section, const Field& field, const Entry& entry, void* out) {
  auto value = as_type(entry.value, field);
  if (!value) value = as_text(entry, field);
  if (!value) {
    if (const auto* written = std::get_if<std::string>(&entry.value); written != nullptr && beyond_double(*written))
      refuse(section, field, "is out of range");
    const bool quote = field.type == kFieldTypeOf<std::string>;
    refuse(section, field,
           fmt::format(
               "must be {}, not {}{}", type_text(field), kind_of(entry.value),
               quote ? fmt::format("; with quotes: {} = \"{}\"", field.key, to_toml(entry.value)) : std::string()));
  }
  check_rules(section, field, *value);
  field.set(out, field.rules.path ? changed_paths(field, std::move(*value), expanded) : *value);
}

/// The rules between several keys of `fields`, for the section as the user wrote it.
class Checked final : public CheckedSection {
 public:
  explicit Checked(const Table& section) : section_(section) {}
  [[nodiscard]] bool written(const std::string& key) const override { return section_.find(key) != nullptr; }
  [[nodiscard]] std::string location(const std::string& key) const override { return location_of(section_, key); }
  [[noreturn]] void fail(const std::string& key, const std::string& what) const override {
    config::fail(&section_, key, what);
  }

 private:
  const Table& section_;
};

// The key that was written first, so that errors are reported in the order of the file.
template <class Map, class OriginOf>
auto first_written(const Map& map, OriginOf origin_of, auto unknown) {
  const typename Map::value_type* first = nullptr;
  for (const auto& item : map) {
    if (!unknown(item.first)) continue;
    if (first == nullptr || origin_of(item.second).line < origin_of(first->second).line) first = &item;
  }
  return first;
}

}  // namespace

bool applies(const FieldTable& fields, const Field& field, const void* object) {
  if (!field.rules.only) return true;
  const Field* governor = fields.find(field.rules.only->key);
  TRIREME_CHECK(governor != nullptr, "[{}] {} depends on a key that is not there: {}", fields.section, field.key,
                field.rules.only->key);
  const auto value = plain_text(governor->get(object));
  const auto& allowed = field.rules.only->values;
  return std::find(allowed.begin(), allowed.end(), value) != allowed.end() && applies(fields, *governor, object);
}

void check_keys(const Table& section, const FieldTable& fields) {
  const auto* key = first_written(
      section.entries, [](const Entry& entry) { return entry.origin; },
      [&](const std::string& name) { return fields.find(name) == nullptr; });
  for (const auto& [name, text] : fields.absent)
    if (key != nullptr && key->first == name)
      throw ConfigError(
          fmt::format("{}: no key \"{}\" in [{}]: {}", key->second.origin.text(), name, section.path, text));
  if (key != nullptr)
    throw ConfigError(fmt::format("{}: no key \"{}\" in [{}]{}{}", key->second.origin.text(), key->first, section.path,
                                  text::did_you_mean(key->first, fields.keys()), hint(section.path)));
  const auto* table = first_written(
      section.tables, [](const Table& inner) { return inner.origin; }, [](const std::string&) { return true; });
  if (table != nullptr)
    throw ConfigError(fmt::format("{}: [{}] has no sections inside it, so no [{}]{}", table->second.origin.text(),
                                  section.path, table->second.path, hint(section.path)));
  for (const auto& [name, array] : section.arrays)
    throw ConfigError(fmt::format("{}: [{}] has no sections inside it, so no [[{}]]{}", array.front().origin.text(),
                                  section.path, array.front().path, hint(section.path)));
}

void read_into(const Table* section, const FieldTable& fields, void* out) {
  if (section == nullptr) return;
  check_keys(*section, fields);
  for (const auto& field : fields.fields)
    if (const Entry* entry = section->find(field.key)) read_field(*section, field, *entry, out);
  for (const auto& field : fields.fields) {
    const Entry* entry = section->find(field.key);
    if (entry == nullptr || applies(fields, field, out)) continue;
    // A run's config.toml contains defaults, too; they must not prevent another choice with --set.
    if (entry->origin.line > 0 && field.get(out) == field.default_value) continue;
    const auto& only = *field.rules.only;
    refuse(*section, field,
           fmt::format("has no effect with {0} = {1}; remove it, or set {0} to {2}", only.key,
                       to_toml(fields.find(only.key)->get(out)), text::join(only.values, " or ")));
  }
  for (const auto& rule : fields.rules) rule(out, Checked(*section));
}

Table section_of(const Table& root, const std::string& name) {
  if (const Table* found = root.table(name)) return *found;
  Table none;
  none.path = name;
  none.origin = root.origin;
  return none;
}

SplitSection split_section(const Table& section, const FieldTable& common) {
  SplitSection parts{section, section};
  parts.common.tables.clear();
  parts.common.arrays.clear();
  std::erase_if(parts.common.entries, [&](const auto& entry) { return common.find(entry.first) == nullptr; });
  std::erase_if(parts.own.entries, [&](const auto& entry) { return common.find(entry.first) != nullptr; });
  return parts;
}

void read_own(const Table& own, const FieldTable& chosen, const std::vector<const FieldTable*>& all, void* out) {
  Table mine = own;
  for (const auto& [key, entry] : own.entries) {
    if (chosen.find(key) != nullptr) continue;
    std::vector<std::string> owners;
    bool is_default = false;
    for (const auto* table : all) {
      const auto* field = table->find(key);
      if (field == nullptr) continue;
      owners.push_back(table->choice);
      is_default = is_default || as_type(entry.value, *field) == field->default_value;
    }
    if (owners.empty()) continue;  // an unknown key, which check_keys() reports
    // A run's config.toml contains defaults, too; they must not prevent another choice with --set.
    if (entry.origin.line == 0 || !is_default)
      fail(&own, key,
           fmt::format("has no effect with {0} = \"{1}\"; remove it, or set {0} to {2}", chosen.choice_key,
                       chosen.choice, text::join(owners, " or ")) +
               hint(own.path + "." + key));
    mine.entries.erase(key);
  }
  read_into(&mine, chosen, out);
}

void check_options(const FieldTable& fields, const void* object, void* scratch) {
  const auto section = as_section(fields, object);
  read_into(&section, fields, scratch);
}

static std::string absolute(std::string path) {
  if (path.empty() || path == "~" || path.starts_with("~/")) return path;
  if (path.starts_with("pipe:")) return path;  // a command that writes the data
  return std::filesystem::absolute(path).lexically_normal().string();
}

void make_paths_absolute(const FieldTable& fields, void* object) {
  for (const auto& field : fields.fields)
    if (field.rules.path) field.set(object, changed_paths(field, field.get(object), absolute));
}

void make_paths_absolute(const FieldTable& fields, Table& section) {
  for (auto& [key, entry] : section.entries)
    if (const auto* field = fields.find(key); field != nullptr && field->rules.path)
      entry.value = changed_paths(*field, entry.value, absolute);
}

Table as_section(const FieldTable& fields, const void* object) {
  Table section;
  section.path = fields.section;
  section.origin.source = "the program's options";
  for (const auto& field : fields.fields)
    if (const auto value = field.get(object); value != field.default_value)
      section.entries[field.key] = {value, {fmt::format("{}.{} = {}", fields.section, field.key, to_toml(value))}};
  return section;
}

}  // namespace trireme::config
