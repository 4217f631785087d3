#include "core/setup/known_keys.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/config/document.h"
#include "core/config/other_names.h"
#include "core/setup/run_config.h"

namespace trireme::train {
namespace {

using config::Table;

std::vector<std::string> section_names() {
  std::vector<std::string> names;
  for (const auto* table : section_tables()) names.push_back(table->section);
  names.push_back("plugin");
  return names;
}

/// The section that has this key, to suggest for a misplaced key; "" if there is none.
std::string owner_of(const std::string& key, const FieldTables& all) {
  for (const auto* table : all)
    if (table->find(key) != nullptr) return table->section;
  return "";
}

}  // namespace

void check_sections(const Table& root, const FieldTables& all) {
  const auto names = section_names();
  const auto is_section = [&](const auto& name) { return std::find(names.begin(), names.end(), name) != names.end(); };
  for (const auto& [key, entry] : root.entries) {
    const auto owner = owner_of(key, all);
    throw ConfigError(fmt::format(
        "{}: {}", entry.origin.text(),
        is_section(key) ? fmt::format("{} is a section; write [{}] and its keys below", key, key)
                        : fmt::format("\"{}\" is outside any section{}", key,
                                      owner.empty() ? std::string() : fmt::format("; it belongs in [{}]", owner))));
  }
  for (const auto& [name, array] : root.arrays)
    throw ConfigError(fmt::format(
        "{}: [[{}]] is not a section that repeats; {}", array.front().origin.text(), name,
        is_section(name) ? fmt::format("write [{}]", name) : "only [[data.mix]] and [[optimizer.group]] are"));
  // Reports the first unknown section in the order of the file.
  const Table* unknown = nullptr;
  for (const auto& [name, section] : root.tables)
    if (!is_section(name) && (unknown == nullptr || section.origin.line < unknown->origin.line)) unknown = &section;
  if (unknown == nullptr) return;
  throw ConfigError(fmt::format("{}: no section [{}] (known: {}){}", unknown->origin.text(), unknown->path,
                                text::join(names), text::did_you_mean(unknown->path, names)));
}

void check_known_keys(const Table& section, const FieldTable& common, const FieldTable& chosen,
                      const FieldTables& all) {
  FieldTable known = common;
  known.fields.insert(known.fields.end(), chosen.fields.begin(), chosen.fields.end());
  known.absent.insert(known.absent.end(), chosen.absent.begin(), chosen.absent.end());
  const auto of_another_kind = [&](const std::string& key) {
    return std::any_of(all.begin(), all.end(), [&](const auto* table) {
      return table->section == section.path && table->find(key) != nullptr;
    });
  };
  Table unknown = section;
  std::erase_if(unknown.entries,
                [&](const auto& entry) { return known.find(entry.first) == nullptr && of_another_kind(entry.first); });
  for (const auto& [key, entry] : unknown.entries) {
    if (known.find(key) != nullptr) continue;
    if (const auto name = config::equivalent_key(key); !name.empty())
      throw ConfigError(fmt::format("{}: no key \"{}\" in [{}]; use {}", entry.origin.text(), key, section.path, name));
    if (!text::nearest(key, known.keys()).empty()) continue;
    if (const auto owner = owner_of(key, all); !owner.empty())
      throw ConfigError(
          fmt::format("{}: no key \"{}\" in [{}]; it belongs in [{}]", entry.origin.text(), key, section.path, owner));
    if (section.path != "parallel") continue;
    const auto brief = key.substr(0, key.find("_size"));
    throw ConfigError(fmt::format(
        "{}: no key \"{}\" in [parallel]; {}", entry.origin.text(), key,
        brief != key && known.find(brief) != nullptr
            ? fmt::format("did you mean \"{}\"?", brief)
            : fmt::format("a plugin's own keys belong in [plugin.NAME]  (trireme config --explain {})", key)));
  }
  config::check_keys(unknown, known);
}

void check_plugin(const Table& root, const std::string& chosen) {
  if (chosen.empty())
    config::fail(root.table("parallel"), "plugin", "is empty; name a plugin (trireme plugins lists them)");
  const Table* plugins = root.table("plugin");
  if (plugins == nullptr) return;
  if (!plugins->entries.empty()) {
    const auto& [key, entry] = *plugins->entries.begin();
    throw ConfigError(
        fmt::format("{}: no key \"{}\" in [plugin]; a plugin's options belong in its own section, [plugin.{}]",
                    entry.origin.text(), key, chosen));
  }
  for (const auto& [name, array] : plugins->arrays)
    throw ConfigError(fmt::format("{}: [[plugin.{}]] is not a section that repeats; write [plugin.{}]",
                                  array.front().origin.text(), name, name));
  if (plugins->table(chosen) != nullptr) return;
  for (const auto& [name, section] : plugins->tables) {
    const auto hint = text::did_you_mean(name, std::vector<std::string>{chosen});
    if (!hint.empty())
      throw ConfigError(fmt::format("{}: [{}] is not the section of the chosen plugin \"{}\"{}", section.origin.text(),
                                    section.path, chosen, hint));
  }
}

}  // namespace trireme::train
