#include "core/config/document.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/base/bounds.h"
#include "core/base/error.h"
#include "core/base/text.h"
#include "core/config/other_names.h"

namespace trireme::config {
namespace {

std::string choices_text(const FieldRules& rules) {
  std::vector<std::string> quoted;
  for (const auto& choice : rules.choices) quoted.push_back(to_toml(choice));
  return text::join(quoted, " or ");
}

std::string only_text(const Field& field) {
  if (!field.rules.only) return "";
  return fmt::format("only with {} = {}", field.rules.only->key, text::join(field.rules.only->values, " or "));
}

std::string default_text(const Field& field) {
  return std::holds_alternative<std::monostate>(field.default_value) ? "unset" : to_toml(field.default_value);
}

constexpr int kReadable = 100;  // maximum columns of a line
int readable(int columns) { return columns > 0 ? std::min(columns, kReadable) : kReadable; }

std::string explain_field(const FieldTable& table, const Field& field) {
  std::string out = fmt::format("{}.{}\n  {}\n  value    {}\n  default  {}\n", table.section, field.key, field.text,
                                allowed_text(field), default_text(field));
  if (field.rules.only) out += fmt::format("  applies  {}\n", only_text(field));
  return out;
}

/// The explanations of a key that several tables may have, each once with the choices to which it applies.
class SameKeys {
 public:
  void add(const FieldTable& table, const Field& field) {
    const auto text = explain_field(table, field);
    auto found = std::find_if(all_.begin(), all_.end(), [&](const auto& each) { return each.text == text; });
    if (found == all_.end()) found = all_.insert(all_.end(), {text, table.choice_key, {}});
    if (!table.choice.empty()) found->choices.push_back(table.choice);
  }
  [[nodiscard]] std::string text() const {
    std::string out;
    for (const auto& [what, key, choices] : all_) {
      out += (out.empty() ? "" : "\n") + what;
      if (!choices.empty()) out += fmt::format("  applies  only with {} = {}\n", key, text::join(choices, " or "));
    }
    return out;
  }

 private:
  struct Explained {
    std::string text, choice_key;
    std::vector<std::string> choices;
  };
  std::vector<Explained> all_;
};

std::string explain_absent(const FieldTable& table, const AbsentKey& absent) {
  return fmt::format("{}.{}\n  does not exist: {}\n", table.section, absent.key, absent.text);
}

/// "[optimizer]", or for the further keys of a choice `[optimizer] with name = "sgd"`.
std::string title_of(const FieldTable& table) {
  if (table.repeats) return fmt::format("[[{}]]", table.section);
  if (table.choice.empty()) return fmt::format("[{}]", table.section);
  return fmt::format("[{}] with {} = \"{}\"", table.section, table.choice_key, table.choice);
}

std::string explain_section(const FieldTable& table) {
  std::string out = fmt::format("{}  {}\n", title_of(table), table.text);
  for (const auto& field : table.fields) out += "\n" + explain_field(table, field);
  for (const auto& absent : table.absent) out += "\n" + explain_absent(table, absent);
  return out;
}

std::string explanation(const std::vector<const FieldTable*>& tables, const std::string& name) {
  std::vector<std::string> known;
  std::string section;  // [model] appears once for the keys of all models, then once for each model's own keys
  const auto ends = [&](const std::string& full) { return full == name || full.ends_with("." + name); };
  for (const auto* table : tables) {
    if (ends(table->section)) section += (section.empty() ? "" : "\n") + explain_section(*table);
    known.push_back(table->section);
  }
  if (!section.empty()) return section;
  SameKeys same_keys;
  for (const auto* table : tables) {
    for (const auto& field : table->fields) {
      const auto full = table->section + "." + field.key;
      if (ends(full)) same_keys.add(*table, field);
      known.push_back(full);
    }
  }
  auto same_key = same_keys.text();
  for (const auto* table : tables)
    for (const auto& absent : table->absent)
      if (ends(table->section + "." + absent.key)) same_key += explain_absent(*table, absent);
  if (!same_key.empty()) return same_key;  // the name is a key without its section, or the end of a full key
  if (const auto equivalent = equivalent_key(name.substr(name.rfind('.') + 1)); !equivalent.empty())
    throw ConfigError(fmt::format("--explain {}: no such option; use {}", name, equivalent));
  auto near = text::did_you_mean(name, known);
  if (near.empty() && name.starts_with("plugin.")) {
    near = "; for a plugin outside the plugin folders, give its path: --set parallel.plugin=PATH";
  } else if (near.empty()) {
    std::vector<std::string> sections;
    for (const auto* table : tables)
      if (std::find(sections.begin(), sections.end(), table->section) == sections.end())
        sections.push_back(table->section);
    near = fmt::format(" (sections: {})", text::join(sections));
  }
  throw ConfigError(fmt::format("--explain {}: no such option{}", name, near));
}

// Escapes text for a cell of a Markdown table, which a bar would end.
std::string cell(const std::string& text) {
  std::string out;
  for (const char c : text) out += c == '|' ? std::string("\\|") : std::string(1, c);
  return out;
}

}  // namespace

std::string type_text(std::size_t type) {
  static const std::vector<std::string> names{"nothing",           "true or false",    "an integer",
                                              "a number",          "a string",         "a list of integers",
                                              "a list of numbers", "a list of strings"};
  return names.at(type);
}

std::string type_text(const Field& field) {
  return (field.rules.one_for_all ? "an integer or " : "") + type_text(field.type);
}

std::string allowed_text(const Field& field) {
  std::string out = field.rules.choices.empty() ? type_text(field) : choices_text(field.rules);
  if (field.rules.length) out += fmt::format(" with {} elements", *field.rules.length);
  const auto bounds = bounds_text(field.rules);
  if (!bounds.empty()) out += fmt::format(", {}{}", field.rules.length ? "each " : "", bounds);
  return out;
}

std::string explain(const std::vector<const FieldTable*>& tables, const std::string& name, int columns) {
  return text::wrap(explanation(tables, name), static_cast<std::size_t>(readable(columns)));
}

std::string list_options(const FieldTable& table, int columns) {
  std::string out;
  for (const auto& field : table.fields)
    out += fmt::format("  {} = {}  ({})\n      {}\n", field.key, default_text(field), allowed_text(field), field.text);
  return text::wrap(out, static_cast<std::size_t>(readable(columns)));
}

std::string document_markdown(const std::vector<const FieldTable*>& tables) {
  std::string out =
      "# Options of the TOML file\n\nThis page is generated by `trireme config --markdown`; a test fails when it is "
      "out of date.\n\nEvery key may also be given on the command line: `--set train.epochs=5`. A key that is unknown, "
      "has the wrong type, is out of range or would have no effect is an error that names its place in the file.\n";
  for (const auto* table : tables) {
    out += fmt::format("\n## {}\n\n{}\n\n", title_of(*table), table->text);
    if (table->fields.empty()) continue;
    out += "| key | value | default | what it does |\n|---|---|---|---|\n";
    for (const auto& field : table->fields) {
      const auto only = only_text(field);
      out +=
          fmt::format("| `{}` | {} | `{}` | {}{} |\n", field.key, cell(allowed_text(field)), cell(default_text(field)),
                      cell(field.text), only.empty() ? "" : fmt::format(" ({}.)", cell(only)));
    }
  }
  return out;
}

}  // namespace trireme::config
