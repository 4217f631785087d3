// JSON as text for a file. A name from outside that is not UTF-8 must not end a run: its bytes become U+FFFD.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace trireme {

/// indent -1: one line.
inline std::string json_text(const nlohmann::json& value, int indent = -1) {
  return value.dump(indent, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace trireme
