// JSON as text for a file. Bytes of external names that are not UTF-8 become U+FFFD instead of an error.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace trireme {

/// indent -1: one line.
inline std::string json_text(const nlohmann::json& value, int indent = -1) {
  return value.dump(indent, ' ', false, nlohmann::json::error_handler_t::replace);
}

/// Whether a value is an integer that a std::int64_t holds. The library's get() would convert any number.
inline bool is_int64(const nlohmann::json& value) {
  return value.is_number_unsigned() ? value.get<std::uint64_t>() <= std::uint64_t{INT64_MAX}
                                    : value.is_number_integer();
}

/// Describes a JSON error without the library's error name: "line 3, column 5: not valid JSON", "key 'format' not
/// found".
inline std::string json_problem(const nlohmann::json::exception& error) {
  const std::string_view text = error.what();
  const auto after = [&](std::string_view mark) {
    const auto at = text.find(mark);
    return at == text.npos ? text : text.substr(at + mark.size());
  };
  if (dynamic_cast<const nlohmann::json::parse_error*>(&error) == nullptr) return std::string(after("] "));
  const auto position = after("parse error at ");
  if (position.size() == text.size()) return "not valid JSON";
  return std::string(position.substr(0, position.find(':'))) + ": not valid JSON";
}

}  // namespace trireme
