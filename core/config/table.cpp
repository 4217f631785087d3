#include "core/config/table.h"

#include <fmt/format.h>

#include <cctype>
#include <regex>

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

const Entry* Table::find(const std::string& section, const std::string& key) const {
  const auto* found = table(section);
  return found == nullptr ? nullptr : found->find(key);
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

/// The section's subsection [[name]] of this number, from 1, or null.
static const Table* repeated(const Table& section, const std::string& name, std::size_t number) {
  const auto found = section.arrays.find(name);
  return found == section.arrays.end() || number < 1 || number > found->second.size() ? nullptr
                                                                                      : &found->second[number - 1];
}

void with_location(const Table& root, const std::function<void()>& check) {
  try {
    check();
  } catch (const ConfigError& error) {
    static const std::regex kKey(R"(([a-z_]+)\.(?:([a-z_]+)\[([0-9]{1,6})\]\.)?([a-z_]+):? )");
    const std::string what = error.what();
    std::smatch key;
    const bool named = std::regex_search(what, key, kKey, std::regex_constants::match_continuous);
    const auto* section = named ? root.table(key[1]) : nullptr;
    if (section != nullptr && key[3].matched) section = repeated(*section, key[2], std::stoul(key[3]));
    if (section == nullptr) throw;
    fail(section, key[4], key.suffix());
  }
}

}  // namespace trireme::config
