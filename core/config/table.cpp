#include "core/config/table.h"

#include <fmt/format.h>

#include <cctype>

#include "core/base/error.h"

namespace trireme::config {

std::string Origin::text() const { return line == 0 ? source : fmt::format("{}:{}:{}", source, line, column); }

const Entry* Table::find(const std::string& key) const {
  const auto found = entries.find(key);
  return found == entries.end() ? nullptr : &found->second;
}

const Table* Table::table(const std::string& key) const {
  const auto found = tables.find(key);
  return found == tables.end() ? nullptr : &found->second;
}

std::string location_of(const Table& section, const std::string& key) {
  const Entry* entry = section.find(key);
  if (entry == nullptr) {
    const auto known = section.user_names.find(key);
    return known == section.user_names.end() ? fmt::format("{}: [{}] {}", section.origin.text(), section.path, key)
                                             : fmt::format("{}: {}", section.origin.text(), known->second);
  }
  // An override already shows its key and value: "--set train.epochs=x".
  if (entry->origin.line == 0) return entry->origin.text();
  const auto name = entry->written_as.empty() ? fmt::format("{}.{}", section.path, key) : entry->written_as;
  return fmt::format("{}: {} = {}", entry->origin.text(), name, to_toml(entry->value));
}

/// Replaces keys in `text` that the user wrote under other names by those names.
static std::string with_written_keys(const Table& section, const std::string& text) {
  const auto in_word = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; };
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    auto end = at;
    while (end < text.size() &&
           (in_word(text[end]) || (text[end] == '.' && end + 1 < text.size() && in_word(text[end + 1]))))
      ++end;
    const auto known = section.user_names.find(text.substr(at, end - at));
    out += known == section.user_names.end() ? text.substr(at, end - at) : known->second;
    if (end < text.size()) out += text[end++];
    at = end;
  }
  return out;
}

void fail(const Table* section, const std::string& key, const std::string& what) {
  if (section == nullptr) throw ConfigError(fmt::format("{}: {}", key, what));
  throw ConfigError(fmt::format("{}: {}", location_of(*section, key), with_written_keys(*section, what)));
}

}  // namespace trireme::config
