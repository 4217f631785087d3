#include "core/config/location.h"

#include <regex>
#include <string>

#include "core/base/error.h"

namespace trireme::config {

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
