// Prints values and sections as TOML text.
#include <fmt/format.h>

#include "core/base/text.h"
#include "core/config/document.h"
#include "core/config/table.h"

namespace trireme::config {
namespace {

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) {
      out += fmt::format("\\u{:04X}", static_cast<unsigned char>(c));
    } else {
      out += c;
    }
  }
  return out + '"';
}

// The shortest digits that parse to the same double, with a point or an exponent so that it stays a float in TOML.
std::string number(double value) {
  auto out = fmt::format("{}", value);
  if (out.find_first_of(".einf") == std::string::npos) out += ".0";
  return out;
}

template <class T, class Print>
std::string list(const std::vector<T>& values, Print print) {
  std::vector<std::string> parts;
  for (const auto& value : values) parts.push_back(print(value));
  return fmt::format("[{}]", text::join(parts));
}

struct Printer {
  std::string operator()(std::monostate) const { return ""; }
  std::string operator()(bool value) const { return value ? "true" : "false"; }
  std::string operator()(std::int64_t value) const { return fmt::format("{}", value); }
  std::string operator()(double value) const { return number(value); }
  std::string operator()(const std::string& value) const { return quoted(value); }
  std::string operator()(const std::vector<std::int64_t>& values) const {
    return list(values, [](std::int64_t value) { return fmt::format("{}", value); });
  }
  std::string operator()(const std::vector<double>& values) const { return list(values, number); }
  std::string operator()(const std::vector<std::string>& values) const { return list(values, quoted); }
};

}  // namespace

std::string to_toml(const FieldValue& value) { return std::visit(Printer{}, value); }

std::string plain_text(const FieldValue& value) {
  const auto* text = std::get_if<std::string>(&value);
  return text != nullptr ? *text : to_toml(value);
}

std::string print_section(const FieldTable& fields, const void* object) {
  const auto header = fmt::format("[{}]", fields.section);
  return (fields.repeats ? "[" + header + "]" : header) + "\n" + print_rows(fields, object);
}

std::string print_rows(const FieldTable& fields, const void* object) {
  std::string out;
  for (const auto& field : fields.fields) {
    const auto value = field.get(object);
    if (std::holds_alternative<std::monostate>(value)) {
      out += fmt::format("# {} is not set\n", field.key);
    } else if (!applies(fields, field, object)) {
      out += fmt::format("# {} = {}  (only with {} = {})\n", field.key, to_toml(value), field.rules.only->key,
                         text::join(field.rules.only->values, " or "));
    } else {
      out += fmt::format("{} = {}\n", field.key, to_toml(value));
    }
  }
  return out;
}

static std::string print_entries(const Table& table) {
  std::string out;
  for (const auto& [key, entry] : table.entries) out += fmt::format("{} = {}\n", key, to_toml(entry.value));
  return out;
}

std::string print_table(const Table& table) {
  auto out = (table.path.empty() ? "" : fmt::format("[{}]\n", table.path)) + print_entries(table);
  const auto add = [&out](const std::string& text) { out += (out.empty() ? "" : "\n") + text; };
  for (const auto& [key, inner] : table.tables) add(print_table(inner));
  for (const auto& [key, array] : table.arrays)
    for (const auto& inner : array) add(fmt::format("[[{}]]\n", inner.path) + print_entries(inner));
  return out;
}

}  // namespace trireme::config
