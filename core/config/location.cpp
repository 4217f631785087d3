#include "core/config/location.h"

#include <regex>
#include <string>

#include "core/base/error.h"

namespace trireme::config {

void with_location(const Table& root, const std::function<void()>& check) {
  try {
    check();
  } catch (const ConfigError& error) {
    static const std::regex kKey("([a-z_]+)\\.([a-z_]+):? ");
    const std::string what = error.what();
    std::smatch key;
    const bool named = std::regex_search(what, key, kKey, std::regex_constants::match_continuous);
    const auto* section = named ? root.table(key[1]) : nullptr;
    if (section == nullptr) throw;
    fail(section, key[2], key.suffix());
  }
}

}  // namespace trireme::config
