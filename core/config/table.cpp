#include "core/config/table.h"

#include <fmt/format.h>

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

std::string place_of(const Table& section, const std::string& key) {
  const Entry* entry = section.find(key);
  if (entry == nullptr) return fmt::format("{}: [{}] {}", section.origin.text(), section.path, key);
  // An override already shows its key and value: "--set train.epochs=x".
  if (entry->origin.line == 0) return entry->origin.text();
  const auto name = entry->written_as.empty() ? fmt::format("{}.{}", section.path, key) : entry->written_as;
  return fmt::format("{}: {} = {}", entry->origin.text(), name, to_toml(entry->value));
}

void fail(const Table* section, const std::string& key, const std::string& what) {
  if (section == nullptr) throw ConfigError(fmt::format("{}: {}", key, what));
  throw ConfigError(fmt::format("{}: {}", place_of(*section, key), what));
}

}  // namespace trireme::config
